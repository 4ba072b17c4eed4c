"""The checks on a GPU can fail: a sum by a float atomicAdd varies there, and they see it."""

import pytest
import torch

from detmode.verify import claims
from detmode.verify.cases import Case, cases
from tests.shared.cuda_sources import add_racing

pytestmark = pytest.mark.cuda

N = 1 << 20


def test_an_atomic_sum_varies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of bits refuses it. Without it, equal bits could mean that none are compared."""
    values, index = torch.randn(N, device="cuda"), torch.zeros(N, dtype=torch.int64, device="cuda")
    case: Case = cases("put")[0]

    def run(*arguments: object, **more: object) -> tuple[torch.Tensor, ...]:
        return (add_racing(torch.zeros(1, device="cuda"), values, index),)

    monkeypatch.setattr(claims, "run_substituted", run)
    with pytest.raises(claims.ClaimError, match=r"run \d+ gave different bits from the first"):
        claims.check_bits(case, "cuda", 100)
