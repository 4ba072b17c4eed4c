"""index_reduce on the host runner, over shapes, strides, dtypes and arguments."""

from __future__ import annotations

import pytest
import torch
from exact_reductions import DTYPES, assert_reduced, values
from exact_sums import (
    LAYOUTS,
    SEEDS,
    assert_exact,
    assert_same_bits_in_any_schedule,
    laid_out,
    same_bits,
)
from hypothesis import given
from hypothesis import strategies as st

from detmode.cuda import unavailable
from detmode.rules.index_reduce import launch
from detmode.table.samples import Maker

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))

sizes = st.one_of(st.integers(0, 5), st.integers(1, 9), st.just(33))
counts = st.one_of(st.integers(0, 9), st.sampled_from([63, 64, 65, 130, 300]))


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["amax", "amin", "mean", "prod"])
@given(data=st.data(), dtype=DTYPES, seed=SEEDS)
def test_index_reduce(
    reduce: str, include_self: bool, data: st.DataObject, dtype: torch.dtype, seed: int
) -> None:
    """Every reduction is exact but for its roundings, in any schedule, in place and not."""
    shape = data.draw(st.lists(sizes, max_size=3))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1)) if shape else 0
    size = shape[dim] if shape else 1
    rows = data.draw(counts) if size and shape else 1 if size else 0
    self = data.draw(values(shape, dtype))
    brought = list(shape)
    if shape:
        brought[dim] = rows
    source = data.draw(values(brought, dtype))
    spread = data.draw(st.sampled_from([1, 2, size]))
    index = Maker(dtype, seed=seed).integers(0, min(spread, size), rows)
    index = data.draw(st.sampled_from([index, index.int(), index.repeat_interleave(2)[::2]]))

    function = launch.index_reduce
    if reduce == "mean" and not dtype.is_floating_point:
        function = launch.mean_of_integers
    got = assert_same_bits_in_any_schedule(
        lambda: function(self, dim, index, source, reduce, include_self=include_self), seed
    )
    assert got.is_contiguous()
    target = laid_out(self.contiguous().clone(), data.draw(st.sampled_from(LAYOUTS[:3])))
    returned = function(target, dim, index, source, reduce, include_self=include_self, out=target)
    assert returned is target
    assert same_bits(target, got)
    if source.numel() == 0:
        assert same_bits(got, self)
        return
    if reduce == "mean" and not dtype.is_floating_point:
        arguments = (self, dim, index, source, reduce)
        expected = torch.ops.aten.index_reduce(*arguments, include_self=include_self)
        assert torch.equal(got, expected)
        return
    flat = torch.arange(self.numel()).view(self.shape)
    destinations = flat.index_select(dim, index) if shape else flat.expand(rows)
    if reduce == "mean":
        options = {"include_self": include_self, "mean": True}
        assert_exact(got, self, destinations, source, **options)
    else:
        assert_reduced(got, self, destinations, source, reduce, include_self=include_self)
