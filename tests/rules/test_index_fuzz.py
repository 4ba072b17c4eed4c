"""index_add and index_put on the host runner, over shapes, strides, dtypes and arguments."""

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
from torch import Tensor

from detmode.cuda import unavailable
from detmode.cuda.rows import shapes, sums
from detmode.rules.index import launch
from detmode.table.samples import Maker

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))

sizes = st.one_of(st.integers(0, 5), st.integers(1, 9), st.just(33))
counts = st.one_of(st.integers(0, 9), st.sampled_from([63, 64, 65, 130, 300]))


def way(sorts: bool | None) -> mock._patch:
    """Both ways for all shapes, not only the cheaper one."""
    choice = shapes.sorts_rows if sorts is None else lambda *args: sorts
    return mock.patch.object(sums, "sorts_rows", choice)


@given(data=st.data(), dtype=DTYPES, sorts=WAYS, seed=SEEDS)
def test_index_add(data: st.DataObject, dtype: torch.dtype, sorts: bool | None, seed: int) -> None:
    """Sums are exact but for one rounding, in any schedule, in place and not."""
    shape = data.draw(st.lists(sizes, max_size=3))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1)) if shape else 0
    size = shape[dim] if shape else 1
    rows = data.draw(counts) if shape and size else int(not shape)
    spread = data.draw(st.integers(1, max(size, 1)))
    index = Maker(dtype, seed=seed).integers(0, spread, rows)
    index = index.to(data.draw(st.sampled_from([torch.int64, torch.int32])))
    self = data.draw(tensors(shape, dtype))
    source_shape = list(shape)
    if shape:
        source_shape[dim] = rows
    source = data.draw(tensors(source_shape, dtype))
    alpha = data.draw(st.sampled_from([1, 1, 1, -1, 0.3, 3]))

    with way(sorts):
        got = assert_same_bits_in_any_schedule(
            lambda: launch.index_add(self, dim, index, source, alpha=alpha), seed
        )
        target = laid_out(self.contiguous().clone(), data.draw(st.sampled_from(LAYOUTS[:3])))
        returned = launch.index_add(target, dim, index, source, alpha=alpha, out=target)
    assert returned is target
    assert same_bits(target, got)
    flat = torch.arange(self.numel()).view(self.shape)
    destinations = flat.index_select(dim, index) if shape else flat
    assert_exact(got, self, destinations, source if alpha == 1 else source * alpha)


@st.composite
def index_lists(draw: st.DrawFn, shape: list[int], seed: int) -> list[Tensor | None]:
    """One to three indices that broadcast, masks and None among them."""
    maker = Maker(torch.float32, seed=seed)
    common = draw(st.lists(st.sampled_from([1, 2, 7, 40]), max_size=2))
    indices: list[Tensor | None] = []
    masked = False
    for size in shape:
        kind = draw(st.sampled_from(["index", "index", "index", "none", "mask", "stop"]))
        if kind == "stop" and indices:
            break
        if kind == "none":
            indices.append(None)
        elif kind == "mask" and not masked and not common:
            indices.append(maker.integers(0, 2, size, dtype=torch.bool))
            masked = True
        else:
            own = [n if draw(st.integers(0, 3)) else 1 for n in common]
            if masked:
                own = [1]
            dtype = draw(st.sampled_from([torch.int64, torch.int64, torch.int32]))
            indices.append(maker.integers(-size, size, *own, dtype=dtype))
    if all(index is None for index in indices):
        indices[:1] = [maker.integers(-shape[0], shape[0], 5)]
    return indices


@given(data=st.data(), dtype=DTYPES, sorts=WAYS, seed=SEEDS)
def test_index_put(data: st.DataObject, dtype: torch.dtype, sorts: bool | None, seed: int) -> None:
    """Accumulation is exact but for one rounding, in any schedule, in place and not."""
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 33]), min_size=1, max_size=3))
    indices = data.draw(index_lists(shape, seed))
    self = data.draw(tensors(shape, dtype))
    flat = torch.arange(self.numel()).view(self.shape)
    destinations = torch.ops.aten.index(flat, indices)
    own = [n if data.draw(st.integers(0, 4)) else 1 for n in destinations.shape]
    values = data.draw(tensors(own[data.draw(st.integers(0, len(own))) :], dtype))
    if values.dim() < destinations.dim() and data.draw(st.booleans()):
        values = values.expand(destinations.shape)

    with way(sorts):
        got = assert_same_bits_in_any_schedule(
            lambda: launch.index_put(self, indices, values, True), seed
        )
        target = laid_out(self.contiguous().clone(), data.draw(st.sampled_from(LAYOUTS[:3])))
        returned = launch.index_put(target, indices, values, True, out=target)
    assert returned is target
    assert same_bits(target, got)
    assert_exact(got, self, destinations, values.expand(destinations.shape))


@given(seed=SEEDS, dtype=DTYPES, spread=st.sampled_from([1, 2, 50]))
def test_both_ways_meet(seed: int, dtype: torch.dtype, spread: int) -> None:
    """Long runs of duplicates: several levels of carries, and the integers beside them."""
    maker = Maker(dtype, seed=seed)
    self, source = maker.normal(50, 2), maker.normal(4500, 2)
    index = maker.integers(0, spread, 4500)
    flat = torch.arange(100).view(50, 2)
    for sorts in (True, False):
        with way(sorts):
            got = assert_same_bits_in_any_schedule(
                lambda: launch.index_add(self, 0, index, source), seed
            )
        assert_exact(got, self, flat[index], source)


@pytest.mark.parametrize("by_row", [True, False])
def test_no_more_rows_are_sorted_than_a_gpu_sorts(by_row: bool) -> None:
    """Rows whose sort is cheaper are sorted up to torch.sort's limit on CUDA, and added beyond."""

    def sorts(n: int) -> bool:
        return shapes.sorts_rows(shapes.Rows(1, n, 1, 2), torch.complex128, by_row)

    assert sorts(2**31 - 1)
    assert not sorts(2**31)
