"""What ATen rejects, a substitute rejects with the same type of exception."""

import pytest
import torch

from detmode import cuda
from detmode.rules import families
from detmode.table.samples import Sample
from detmode.verify.cases import name_of, samples_of
from detmode.verify.claims import check_refused

REFUSED = [
    pytest.param(family, sample, dtype, id=f"{family}-{name_of(dtype)}-{sample.name}")
    for family in families()
    for sample in samples_of(family).errors
    for dtype in sample.dtypes
]


@pytest.mark.skipif(
    cuda.unavailable("cpu") is not None, reason="the host runner needs a C++ compiler"
)
@pytest.mark.parametrize(("family", "sample", "dtype"), REFUSED)
def test_rejected_as_by_aten(family: str, sample: Sample, dtype: torch.dtype) -> None:
    """The family's ``errors`` raise the type of exception that ATen raises on the CPU."""
    check_refused(family, sample, dtype)
