"""Compositions of torch operators give what the operators give, under PyTorch's own flag."""

import pytest
import torch
from compositions import COMPOSITIONS
from sides import timed_families

from detmode import DeterministicMode
from detmode.process.arguments import signature_of
from detmode.table.rule_table import resolve
from detmode.verify.cases import Case, cases, run_truth, samples_of, tensors_of

FORMS = {"collisions", "odd_sizes", "non_contiguous", "channels_last", "negative_dim"}
# What the operator takes and no benchmark has: masks and indices behind other dimensions; nearest
# and cubic sampling.
UNLIKE = ("mask", "images") + ("nearest", "bicubic")


def composed(case: Case) -> bool:
    op, name = case.sample.op, case.sample.name
    given = op in COMPOSITIONS and bool(
        FORMS & set(case.sample.covers)
        or name.endswith("_elements")
        or name in ("divisor", "range_of_elements_few", "exact_border")
    )
    unlike = op.startswith(("aten::index_put", "aten::grid")) and any(
        word in name for word in UNLIKE
    )
    return given and not unlike and "empty" not in name


CASES = [
    pytest.param(case, id=str(case))
    for case in cases()
    if case.dtype is torch.float32 and composed(case)
]


@pytest.mark.usefixtures("cublas_workspace")
@pytest.mark.parametrize("case", CASES)
def test_result_is_the_operators(case: Case) -> None:
    """Up to roundings in float32; nothing in it has PyTorch's alert, or its flag would raise."""
    operator = resolve(case.sample.op)
    arguments = signature_of(operator).bind((), case.sample.arguments(case.dtype))
    with DeterministicMode(substitute=False, simulate="cuda"):
        found = tensors_of(COMPOSITIONS[case.sample.op](**arguments))
    truth = run_truth(case.family, case.sample, case.dtype)
    assert len(found) == len(truth)
    for mine, true in zip(found, truth):
        assert mine.shape == true.shape
        if mine.is_floating_point():
            bound = 1e-4 * float(true.abs().max()) if true.numel() else 0.0
            torch.testing.assert_close(mine.double(), true.double(), rtol=0.0, atol=bound)


def test_every_operator_is_timed_and_tried() -> None:
    """Every composition is tried, and hardly an operator of PyTorch's is without one."""
    assert {case.values[0].sample.op for case in CASES} == set(COMPOSITIONS)
    timed = {sample.op for family in timed_families() for sample in samples_of(family).bench}
    without = {op for op in timed - set(COMPOSITIONS) if op.startswith("aten::")}
    assert without == {"aten::_ctc_loss_backward"}
    assert timed >= set(COMPOSITIONS)
