"""``histc`` of integers where CUDA is simulated: CUDA has a kernel for it, the CPU none."""

import pytest
import torch

from detmode import DeterministicMode, audit

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("intercept", ["all", "listed"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_counts(dtype, intercept):
    """The counts are those of the same numbers as floats, in the dtype of the input."""
    x = torch.tensor([0, 1, 2, 2, 3, 5, 7, 7, 9], dtype=dtype)
    with DeterministicMode(simulate="cuda", intercept=intercept) as mode:
        for bins, *limits in ((4, 0, 8), (3, 1, 7), (4,), (5, 3, 3)):
            found = torch.histc(x, bins, *limits)
            assert found.dtype == dtype
            assert found.tolist() == torch.histc(x.double(), bins, *limits).tolist()
        into = torch.empty(4, dtype=dtype)
        assert torch.histc(x, 4, 0, 8, out=into).tolist() == [2, 3, 1, 2]
        assert into.tolist() == [2, 3, 1, 2]
    assert {record.overload for record in mode.records} <= {
        "aten::histc.default",
        "aten::empty.memory_format",
    }


def test_what_cuda_rejects():
    """Ranges and bins that CUDA rejects are rejected; what it has no kernel for keeps its error."""
    x = torch.arange(5)
    with DeterministicMode(simulate="cuda"):
        with pytest.raises(RuntimeError, match="bins must be > 0"):
            torch.histc(x, 0)
        with pytest.raises(RuntimeError, match="max must be larger than min"):
            torch.histc(x, 3, 4, 1)
        with pytest.raises(NotImplementedError, match="cpu.* not implemented for 'Bool'"):
            torch.histc(x > 2, 3)
        assert torch.histc(x, 5).tolist() == [1] * 5
    with pytest.raises(NotImplementedError, match="histogram_cpu"):
        torch.histc(x, 5)


def test_an_audit():
    """An audit of a program for CUDA goes on where the CPU has no kernel."""
    assert audit(lambda: torch.histc(torch.arange(5), 5)).total.calls
