"""Calls that bring values to places of ``self``, as each family makes them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from detmode.table.inputs import back_to_front
from detmode.table.samples import Maker
from tests.shared.strategies import LAYOUTS, SEEDS, places

Values = Callable[[Sequence[int], torch.dtype], st.SearchStrategy[Tensor]]
"""A strategy for tensors of a shape and dtype."""


@dataclass(frozen=True)
class Brought:
    """A call.

    Args:
        arguments: of the function, ``self`` first.
        to: the row-major positions in ``self`` where the values go.
        values: those that go there, of the shape of ``to``.
    """

    arguments: tuple[Any, ...]
    to: Tensor
    values: Tensor


@st.composite
def rows(draw: st.DrawFn, values: Values, dtype: torch.dtype) -> Brought:
    """Rows along a dimension, by an index of them."""
    shape, dim, lengths, spread = draw(places())
    n = lengths[dim] if shape else 1
    index = Maker(dtype, seed=draw(SEEDS)).integers(0, spread, n)
    self, source = draw(values(shape, dtype)), draw(values(lengths, dtype))
    flat = torch.arange(self.numel()).view(shape)
    to = flat.index_select(dim, index) if shape else flat
    index = draw(st.sampled_from([index, index.int(), index.repeat_interleave(2)[::2]]))
    return Brought((self, dim, index, source), to, source)


@st.composite
def indexed(draw: st.DrawFn, values: Values, dtype: torch.dtype) -> Brought:
    """Values for indices that broadcast, stand apart, are negative, or are masks."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 5, 33]), min_size=1, max_size=4))
    maker = Maker(torch.float32, seed=draw(SEEDS))
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
            indices.append(maker.mask(size))
            masked = True
        else:
            own = [1] if masked else [n if draw(st.integers(0, 3)) else 1 for n in common]
            integer = draw(st.sampled_from([torch.int64, torch.int64, torch.int32]))
            indices.append(maker.integers(-size, size, *own, dtype=integer))
    if all(index is None for index in indices):
        indices[:1] = [maker.integers(-shape[0], shape[0], 5)]
    self = draw(values(shape, dtype))
    to = torch.ops.aten.index(torch.arange(self.numel()).view(shape), indices)
    own = [n if draw(st.integers(0, 4)) else 1 for n in to.shape]
    given = draw(values(own[draw(st.integers(0, len(own))) :], dtype))
    if given.dim() < to.dim() and draw(st.booleans()):
        given = given.expand(to.shape)
    return Brought((self, indices, given), to, given.expand(to.shape))


@st.composite
def scattered(draw: st.DrawFn, values: Values, dtype: torch.dtype) -> Brought:
    """Elements along a dimension, by an index of each, which may be expanded."""
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
    return Brought((self, dim, index.int() if draw(st.booleans()) else index, src), to, part)


@st.composite
def placed(draw: st.DrawFn, values: Values, dtype: torch.dtype) -> Brought:
    """Elements by row-major positions, of which negative ones count from the end."""
    counts = st.sampled_from([[], [0], [1], [9], [40], [130], [4, 6], [5, 3, 2]])
    n = draw(counts)
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 7, 30]), max_size=3))
    self = draw(st.sampled_from([Tensor.contiguous, back_to_front]))(draw(values(shape, dtype)))
    spread, make = draw(st.integers(1, self.numel())), Maker(dtype, seed=draw(SEEDS))
    index = make.integers(draw(st.sampled_from([-spread, 0])), spread, *n)
    to = torch.where(index < 0, index + self.numel(), index)
    source = draw(values(n, dtype))
    return Brought((self, draw(LAYOUTS)(index), source), to, source)
