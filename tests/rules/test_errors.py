"""What ATen rejects, a substitute rejects with the same type of exception."""

import pytest
import torch

from detmode import cuda
from detmode.rules import rooms
from detmode.table.samples import Sample
from detmode.verify.cases import name_of, samples_of
from detmode.verify.claims import check_refused

REFUSED = [
    pytest.param(room, sample, dtype, id=f"{room}-{name_of(dtype)}-{sample.name}")
    for room in rooms()
    for sample in getattr(samples_of(room), "ERRORS", ())
    for dtype in sample.dtypes
]


@pytest.mark.skipif(
    cuda.unavailable("cpu") is not None, reason="the host runner needs a C++ compiler"
)
@pytest.mark.parametrize(("room", "sample", "dtype"), REFUSED)
def test_rejected_as_by_aten(room: str, sample: Sample, dtype: torch.dtype) -> None:
    """The room's ERRORS raise the type of exception that ATen raises on the CPU."""
    check_refused(room, sample, dtype)
