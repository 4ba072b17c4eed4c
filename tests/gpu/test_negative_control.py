"""The checks on a GPU can fail: a sum by a float atomicAdd varies there, and they see it."""

import pytest
import torch
from cuda_sources import KERNELS

from detmode.cuda import launch
from detmode.verify import claims
from detmode.verify.cases import Case, cases

pytestmark = pytest.mark.cuda

N = 1 << 20


def racing_sum(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The sum of all values at one place, in the order in which the threads come."""
    output = torch.zeros(1, device="cuda")
    launch(KERNELS, "naive_scatter<float>", N, source=values, index=index, output=output, n=N)
    return output


def test_an_atomic_sum_varies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of bits refuses it. Without it, equal bits could mean that none are compared."""
    values, index = torch.randn(N, device="cuda"), torch.zeros(N, dtype=torch.int64, device="cuda")
    case: Case = cases("put")[0]
    monkeypatch.setattr(
        claims, "run_substituted", lambda *arguments, **more: (racing_sum(values, index),)
    )
    with pytest.raises(claims.ClaimError, match=r"run \d+ gave different bits from the first"):
        claims.check_bits(case, "cuda", 100)
