"""scatter_add and scatter_reduce on the host runner, over shapes, strides, dtypes and arguments."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from exact_sums import (
    DTYPES,
    LAYOUTS,
    SEEDS,
    WAYS,
    assert_exact,
    assert_same_bits_in_any_schedule,
    laid_out,
    same_bits,
    tensors,
)
from hypothesis import given
from hypothesis import strategies as st

from detmode.cuda import unavailable
from detmode.cuda.rows import shapes, sums
from detmode.rules.scatter import launch
from detmode.rules.scatter_reduce.launch import scatter_reduce
from detmode.table.samples import Maker

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))

sizes = st.one_of(st.integers(0, 5), st.integers(1, 9), st.just(33))
counts = st.one_of(st.integers(0, 9), st.sampled_from([63, 64, 65, 130, 300]))


@given(
    data=st.data(),
    dtype=DTYPES,
    sorts=WAYS,
    seed=SEEDS,
    reduce=st.sampled_from(["sum", "mean"]),
    include_self=st.booleans(),
    # Which dimensions the index is expanded along.
    expanded=st.sampled_from(["none", "behind", "before", "all"]),
)
def test_scatter_reduce(
    data: st.DataObject,
    dtype: torch.dtype,
    sorts: bool | None,
    seed: int,
    reduce: str,
    include_self: bool,
    expanded: str,
) -> None:
    """Sums and means are exact but for their roundings, in any schedule, in place and not."""
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
    spread = data.draw(st.integers(1, max(size, 1)))
    index = Maker(dtype, seed=seed).integers(0, spread, *own).expand(lengths)
    if expanded == "none":
        index = laid_out(index, data.draw(st.sampled_from(LAYOUTS[:3])))
    self = data.draw(tensors(shape, dtype))
    src = data.draw(tensors([n + data.draw(st.integers(0, 2)) for n in lengths], dtype))

    choice = shapes.sorts_rows if sorts is None else lambda *args: sorts
    with mock.patch.object(sums, "sorts_rows", choice):
        got = assert_same_bits_in_any_schedule(
            lambda: scatter_reduce(self, dim, index, src, reduce, include_self=include_self),
            seed,
        )
        target = laid_out(self.contiguous().clone(), data.draw(st.sampled_from(LAYOUTS[:3])))
        returned = scatter_reduce(
            target, dim, index, src, reduce, include_self=include_self, out=target
        )
        if reduce == "sum" and include_self:
            added = launch.scatter(self, dim, index, src)
            assert same_bits(added, got)
    assert returned is target
    assert same_bits(target, got)
    if index.numel() == 0:
        assert same_bits(got, self)
        return
    flat = torch.arange(self.numel()).view(self.shape)
    part = src[tuple(slice(n) for n in lengths)]
    assert_exact(
        got,
        self,
        flat.gather(dim, index),
        part,
        include_self=include_self,
        mean=reduce == "mean",
    )
