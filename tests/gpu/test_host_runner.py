"""The host runner says the truth about a GPU: bits that are any GPU's are its as well."""

import pytest
import torch
from sides import moved

from detmode import DeterministicMode
from detmode.table.rule import GPU_TO_GPU
from detmode.verify.cases import Case, call, cases, tensors_of
from detmode.verify.claims import same_bits
from tests.shared import needs
from tests.shared.gpu_calls import substituted

pytestmark = [pytest.mark.cuda, needs.compiler]


def takes_functions_of_the_library(case: Case) -> bool:
    """Tell whether sin, cos and atan2 decide the last bits: each C library and CUDA have their own.

    In complex64 their results, which are doubles, are rounded to float.
    """
    return case.sample.op.startswith("aten::logcumsumexp") and case.dtype == torch.complex128


CASES = [
    case
    for case in cases()
    if case.guarantee is GPU_TO_GPU and not takes_functions_of_the_library(case)
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_gpu_has_the_bits_of_the_host_runner(case: Case) -> None:
    """From the same inputs one source, compiled by NVRTC and by g++, gives the same bits."""
    arguments = case.sample.arguments(case.dtype)
    theirs = substituted(case, moved(arguments, "cuda"))
    with DeterministicMode(simulate="cuda"):
        ours = tensors_of(call(case.sample, arguments))
    assert same_bits([_plain(each.cpu()) for each in theirs], [_plain(each) for each in ours])


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with one NaN for all: a CPU and a GPU make NaNs of other bits."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point():
        return tensor
    return tensor.masked_fill(tensor.isnan(), torch.nan)
