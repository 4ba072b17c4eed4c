"""Products, maxima and minima of scattered elements on the host runner."""

from __future__ import annotations

import pytest
import torch
from exact_reductions import DTYPES, assert_reduced, values
from exact_sums import (
    LAYOUTS,
    SEEDS,
    assert_same_bits_in_any_schedule,
    laid_out,
    same_bits,
)
from hypothesis import given
from hypothesis import strategies as st

from detmode.cuda import unavailable
from detmode.rules.scatter import launch as scatter
from detmode.rules.scatter_reduce import launch
from detmode.table.samples import Maker

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))

sizes = st.one_of(st.integers(0, 5), st.integers(1, 9), st.just(33))
counts = st.one_of(st.integers(0, 9), st.sampled_from([63, 64, 65, 130, 300]))


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["prod", "amax", "amin"])
@given(
    data=st.data(),
    dtype=DTYPES,
    seed=SEEDS,
    # Which dimensions the index is expanded along.
    expanded=st.sampled_from(["none", "behind", "before", "all"]),
)
def test_scatter_reduce(
    reduce: str,
    include_self: bool,
    data: st.DataObject,
    dtype: torch.dtype,
    seed: int,
    expanded: str,
) -> None:
    """Every reduction is exact but for its roundings, in any schedule, in place and not."""
    shape = data.draw(st.lists(sizes, max_size=3))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1)) if shape else 0
    axis = dim % max(len(shape), 1)
    size = shape[dim] if shape else 1
    rows = data.draw(counts) if size else 0
    lengths = [
        rows if d == axis else data.draw(st.integers(min(n, 1), n)) for d, n in enumerate(shape)
    ]
    own = [
        1
        if (d > axis and expanded in ("behind", "all"))
        or (d < axis and expanded in ("before", "all"))
        else n
        for d, n in enumerate(lengths)
    ]
    spread = data.draw(st.sampled_from([1, 2, size]))
    index = Maker(dtype, seed=seed).integers(0, min(spread, size), *own).expand(lengths)
    if expanded == "none":
        index = laid_out(index, data.draw(st.sampled_from(LAYOUTS[:3])))
    self = data.draw(values(shape, dtype))
    src = data.draw(values([n + data.draw(st.integers(0, 2)) for n in lengths], dtype))
    # Extrema of integers are ATen's own: their row of the table lets them pass.
    reduce = reduce if dtype.is_floating_point else "prod"

    function = launch.scatter_reduce
    got = assert_same_bits_in_any_schedule(
        lambda: function(self, dim, index, src, reduce, include_self=include_self), seed
    )
    target = laid_out(self.contiguous().clone(), data.draw(st.sampled_from(LAYOUTS[:3])))
    returned = function(target, dim, index, src, reduce, include_self=include_self, out=target)
    assert returned is target
    assert same_bits(target, got)
    if reduce == "prod" and include_self:
        assert same_bits(scatter.scatter(self, dim, index, src, "multiply"), got)
    if index.numel() == 0:
        assert same_bits(got, self)
        return
    flat = torch.arange(self.numel()).view(self.shape)
    part = src[tuple(slice(n) for n in lengths)]
    destinations = flat.gather(dim, index)
    assert_reduced(got, self, destinations, part, reduce, include_self=include_self)
