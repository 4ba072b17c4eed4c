"""Scattering: scalars, and the user's own calls."""

import pytest
import torch

from detmode import DeterministicMode
from detmode.rules.scatter_assign.launch import scatter
from tests.shared import needs

pytestmark = needs.compiler


def test_a_scalar_takes_several() -> None:
    """A tensor without dimensions is a vector of one element, of which an index names many."""
    total, index = torch.tensor(1.0), torch.zeros(3, dtype=torch.int64)
    with DeterministicMode(simulate="cuda"):
        assert total.scatter_add(0, index, torch.tensor([1.0, 2.0, 3.0])) == 7
        with pytest.raises(RuntimeError, match=r"index, \[3\], should be no larger than src"):
            scatter(total, 0, index, torch.ones(2))


def test_methods() -> None:
    """``scatter_`` and the backward of ``topk`` are substituted; other strides run natively."""
    mode = DeterministicMode(simulate="cuda")
    x = torch.randn(3, 9, requires_grad=True)
    with mode:
        torch.zeros(3, 9).scatter_(1, torch.zeros(3, 4, dtype=torch.int64), torch.ones(3, 4))
        x.topk(3, dim=1).values.sum().backward()
        with torch.no_grad():
            x.t().clone().scatter_(1, torch.zeros(9, 2, dtype=torch.int64), torch.ones(9, 2))
    seen = {(r.overload, r.action) for r in mode.records if "scatter" in r.overload}
    assert seen == {
        ("aten::scatter_.src", "substitute"),
        ("aten::scatter_.src", "native"),
        ("aten::scatter.src", "substitute"),
    }
    assert x.grad.sum() == 9
