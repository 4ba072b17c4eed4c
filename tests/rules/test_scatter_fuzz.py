"""Scattering on the host runner: sums, products, extrema, assignments; over shapes and strides."""

from typing import Any

import exact_reductions
import exact_sums
import needs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from last_wins import DTYPES, assert_last_wins, words
from strategies import (
    LAYOUTS,
    SEEDS,
    in_place_and_not,
    places,
    same_bits,
    tensors,
)
from torch import Tensor

from detmode import DeterministicMode
from detmode.rules.scatter import launch
from detmode.rules.scatter_assign.launch import scatter
from detmode.rules.scatter_reduce.launch import scatter_reduce
from detmode.table.samples import Maker

pytestmark = needs.compiler


@st.composite
def calls(
    draw: st.DrawFn, values: Any, dtype: torch.dtype
) -> tuple[Tensor, int, Tensor, Tensor, Tensor, Tensor]:
    """Arguments of a scatter; then the positions in ``self``, and what goes there."""
    shape, dim, lengths, spread = draw(places())
    axis = dim % max(len(shape), 1)
    lengths = [n if d == axis else draw(st.integers(min(n, 1), n)) for d, n in enumerate(lengths)]
    # Which dimensions the index is expanded along.
    along = draw(st.sampled_from(["none", "behind", "before", "all", "some"]))
    before, behind = along in ("before", "all"), along in ("behind", "all")
    expanded = [
        draw(st.booleans()) if along == "some" else before if d < axis else behind
        for d in range(len(lengths))
    ]
    own = [1 if expanded[d] and d != axis else n for d, n in enumerate(lengths)]
    index = Maker(dtype, seed=draw(SEEDS)).integers(0, spread, *own).expand(lengths)
    index = draw(LAYOUTS)(index) if along == "none" else index
    self = draw(values(shape, dtype))
    src = draw(values([n + draw(st.integers(0, 2)) for n in lengths], dtype))
    part = src[tuple(slice(n) for n in lengths)]
    flat = torch.arange(self.numel()).view(shape)
    to = flat.gather(dim, index) if index.numel() else index
    return self, dim, index.int() if draw(st.booleans()) else index, src, to, part


@given(
    data=st.data(),
    dtype=exact_sums.DTYPES,
    seed=SEEDS,
    reduce=st.sampled_from(["sum", "mean"]),
    include_self=st.booleans(),
)
def test_sums(
    data: st.DataObject,
    dtype: torch.dtype,
    seed: int,
    reduce: str,
    include_self: bool,
) -> None:
    """Sums and means are exact but for their roundings, in any schedule, in place and not."""
    self, dim, index, src, to, part = data.draw(calls(tensors, dtype))
    arguments, how = (self, dim, index, src), {"include_self": include_self, "seed": seed}
    got = in_place_and_not(scatter_reduce, *arguments, reduce, layout=data.draw(LAYOUTS), **how)
    if reduce == "sum" and include_self:
        assert same_bits(launch.scatter(*arguments), got)
    exact_sums.assert_exact(got, self, to, part, include_self=include_self, mean=reduce == "mean")


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["prod", "amax", "amin"])
@given(data=st.data(), dtype=exact_reductions.DTYPES, seed=SEEDS)
def test_products_and_extrema(
    reduce: str, include_self: bool, data: st.DataObject, dtype: torch.dtype, seed: int
) -> None:
    """Every reduction is exact but for its roundings, in any schedule, in place and not."""
    self, dim, index, src, to, part = data.draw(calls(exact_reductions.values, dtype))
    # Extrema of integers are ATen's own: their row of the table lets them pass.
    reduce = reduce if dtype.is_floating_point else "prod"
    arguments, how = (self, dim, index, src), {"include_self": include_self, "seed": seed}
    got = in_place_and_not(scatter_reduce, *arguments, reduce, layout=data.draw(LAYOUTS), **how)
    if reduce == "prod" and include_self:
        assert same_bits(launch.scatter(*arguments, "multiply"), got)
    exact_reductions.assert_reduced(got, self, to, part, reduce, include_self=include_self)


@given(data=st.data(), dtype=DTYPES, seed=SEEDS)
def test_assignment(data: st.DataObject, dtype: torch.dtype, seed: int) -> None:
    """The last source along the dimension stays, bit by bit, in any schedule, in place and not."""
    self, dim, index, src, to, part = data.draw(calls(words, dtype))
    got = in_place_and_not(scatter, self.contiguous(), dim, index, src, seed=seed)
    assert_last_wins(got, self, to, part)


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
