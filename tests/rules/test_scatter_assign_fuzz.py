"""scatter with a source tensor on the host runner, over shapes, strides, dtypes and arguments."""

from __future__ import annotations

import pytest
import torch
from exact_sums import SEEDS, laid_out, same_bits
from hypothesis import given
from hypothesis import strategies as st
from last_wins import DTYPES, LAYOUTS, WAYS, assert_last_wins, filled, in_schedules

from detmode import DeterministicMode
from detmode.cuda import unavailable
from detmode.rules.scatter_assign.launch import scatter
from detmode.table.samples import Maker

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))

sizes = st.sampled_from([3, 2, 5, 9, 1])
counts = st.sampled_from([9, 2, 40, 130, 1, 0])


@given(
    data=st.data(),
    dtype=DTYPES,
    elects=WAYS,
    seed=SEEDS,
    layout=LAYOUTS,
    # Which dimensions the index is expanded along.
    expanded=st.sampled_from(["none", "behind", "before", "all"]),
    smaller=st.booleans(),
)
def test_scatter(
    data: st.DataObject,
    dtype: torch.dtype,
    elects: bool | None,
    seed: int,
    layout: str,
    expanded: str,
    smaller: bool,
) -> None:
    """The last source along the dimension stays, bit by bit, in any schedule, in place and not."""
    shape = data.draw(st.lists(sizes, max_size=3))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1)) if shape else 0
    axis = dim % max(len(shape), 1)
    rows = data.draw(counts) if shape else 1
    lengths = [
        rows if d == axis else data.draw(st.integers(1, n)) if smaller else n
        for d, n in enumerate(shape)
    ]
    own = [
        1
        if (d > axis and expanded in ("behind", "all"))
        or (d < axis and expanded in ("before", "all"))
        else n
        for d, n in enumerate(lengths)
    ]
    spread = data.draw(st.integers(1, shape[dim])) if shape else 1
    index = Maker(dtype, seed=seed).integers(0, spread, *own).expand(lengths)
    if data.draw(st.booleans()):
        index = index.int()
    self = filled(dtype, shape, seed)
    src = laid_out(filled(dtype, [n + data.draw(st.integers(0, 1)) for n in lengths], seed), layout)
    got = in_schedules(lambda: scatter(self, dim, index, src), elects, seed)
    target = self.clone()
    assert scatter(target, dim, index, src, out=target) is target
    assert same_bits(target, got)
    if index.numel() == 0:
        assert same_bits(got, self)
        return
    flat = torch.arange(self.numel()).view(self.shape)
    destinations = flat.gather(dim, index.long())
    assert_last_wins(got, self, destinations, src[tuple(slice(n) for n in lengths)])


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
    assert x.grad is not None
    assert x.grad.sum() == 9
