"""index_copy and index_put without accumulation, over shapes, strides, dtypes and indices."""

from __future__ import annotations

import pytest
import torch
from exact_sums import SEEDS, laid_out, same_bits
from hypothesis import given
from hypothesis import strategies as st
from last_wins import DTYPES, LAYOUTS, WAYS, assert_last_wins, filled, in_schedules

from detmode import DeterministicMode
from detmode.cuda import unavailable
from detmode.cuda.rows import assign
from detmode.rules.index.launch import index_put
from detmode.rules.index_copy.launch import index_copy
from detmode.table.samples import Maker

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))

sizes = st.sampled_from([3, 2, 5, 8, 16, 1])
counts = st.sampled_from([9, 2, 40, 130, 1, 0])


@given(
    data=st.data(), dtype=DTYPES, elects=WAYS, seed=SEEDS, layout=LAYOUTS, shift=st.integers(0, 1)
)
def test_index_copy(
    data: st.DataObject, dtype: torch.dtype, elects: bool | None, seed: int, layout: str, shift: int
) -> None:
    """The last row of each destination stays, bit by bit, in place and not, in any schedule."""
    shape = data.draw(st.one_of(st.lists(sizes, min_size=1, max_size=3), st.just([])))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1)) if shape else 0
    size = shape[dim] if shape else 1
    rows = data.draw(counts) if shape else 1
    lengths = [rows if d == dim % len(shape) else n for d, n in enumerate(shape)]
    index = Maker(dtype, seed=seed).integers(0, data.draw(st.integers(1, size)), rows)
    # One element into the storage: rows are aligned to nothing but their elements.
    whole = filled(dtype, [torch.Size(shape).numel() + shift], seed)
    self = whole[shift:].view(shape)
    source = laid_out(filled(dtype, lengths, seed + 1), layout)
    got = in_schedules(lambda: index_copy(self, dim, index, source), elects, seed)
    target = filled(dtype, [torch.Size(shape).numel() + shift], seed)[shift:].view(shape)
    assert index_copy(target, dim, index, source, out=target) is target
    assert same_bits(target, got)
    flat = torch.arange(self.numel()).view(self.shape)
    assert_last_wins(got, self, flat.index_select(dim, index) if shape else index, source)


@st.composite
def indices(draw: st.DrawFn, shape: list[int], maker: Maker) -> list[torch.Tensor | None]:
    """An index, a mask or nothing for each of the first dimensions, at least one of them."""
    rows = draw(st.sampled_from([[], [1], [7], [40], [3, 4]]))
    found: list[torch.Tensor | None] = []
    last = draw(st.integers(1, len(shape)))
    for size in shape[:last]:
        kind = draw(st.sampled_from(["index", "index", "column", "none"]))
        if len(found) == last - 1 and all(index is None for index in found):
            kind = "index"
        if kind == "none":
            found.append(None)
        else:
            own = [*rows[:-1], 1] if kind == "column" and rows else rows
            found.append(maker.integers(-size, size, *own))
    return found


@given(data=st.data(), dtype=DTYPES, elects=WAYS, seed=SEEDS, layout=LAYOUTS)
def test_index_put(
    data: st.DataObject, dtype: torch.dtype, elects: bool | None, seed: int, layout: str
) -> None:
    """The same for indices that broadcast, stand apart, or are negative; values may broadcast."""
    shape = data.draw(st.lists(sizes, min_size=1, max_size=4))
    maker = Maker(dtype, seed=seed)
    given_ = data.draw(indices(shape, maker))
    self = filled(dtype, shape, seed)
    flat = torch.arange(self.numel()).view(self.shape)
    destinations = torch.ops.aten.index(flat, given_)
    whole = list(destinations.shape)
    cut = data.draw(st.integers(0, len(whole)))
    ones = data.draw(st.integers(0, len(whole) - cut))
    values = laid_out(filled(dtype, [1] * ones + whole[cut + ones :], seed + 1), layout)
    got = in_schedules(lambda: index_put(self, given_, values), elects, seed)
    target = self.clone()
    assert index_put(target, given_, values, out=target) is target
    assert same_bits(target, got)
    assert_last_wins(got, self, destinations, values.expand(whole), str(given_))


@given(data=st.data(), dtype=DTYPES, seed=SEEDS)
def test_mask(data: st.DataObject, dtype: torch.dtype, seed: int) -> None:
    """A mask names no place twice: the result is ATen's."""
    shape = data.draw(st.lists(sizes, min_size=1, max_size=3))
    dims = data.draw(st.integers(1, len(shape)))
    mask = Maker(dtype, seed=seed).integers(0, 2, *shape[:dims], dtype=torch.bool)
    self = filled(dtype, shape, seed)
    values = filled(dtype, [int(mask.sum()), *shape[dims:]], seed + 1)
    got = in_schedules(lambda: index_put(self, [mask], values), None, seed)
    assert same_bits(got, self.index_put((mask,), values))


def test_subscripts() -> None:
    """``x[index] = values`` and ``index_copy_`` are substituted, except on views with gaps."""
    index, mode = torch.tensor([1, 0, 1]), DeterministicMode(simulate="cuda")
    x = torch.zeros(2, 4)
    with mode:
        x[index] = torch.arange(12.0).view(3, 4)
        x[:, index] = torch.arange(6.0).view(2, 3)
        x.index_copy_(1, index, 10 * torch.arange(6.0).view(2, 3))
        x[x > 15] = 7.0
    assert [record.action for record in mode.records] == ["substitute", "substitute", "substitute"]
    assert x.tolist() == [[10.0, 7.0, 6.0, 7.0], [7.0, 7.0, 10.0, 11.0]]
    native = DeterministicMode(simulate="cuda")
    with native:
        x[:, :3].index_copy_(0, index, torch.ones(3, 3))
        x.t()[index] = torch.arange(6.0).view(3, 2)
    assert {record.action for record in native.records} == {"native"}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16, torch.uint32], ids=str)
@pytest.mark.parametrize("elects", [True, False])
def test_dtypes_without_arithmetic(dtype: torch.dtype, elects: bool) -> None:
    """Bits move whatever they mean."""
    self, source = filled(dtype, [5, 3], 0), filled(dtype, [9, 3], 1)
    index = torch.tensor([0, 4, 4, 2, 0, 2, 2, 4, 1])
    got = in_schedules(lambda: index_copy(self, 0, index, source), elects, 3)
    flat = torch.arange(15).view(5, 3)
    integer = assign.WORDS[dtype.itemsize]
    assert_last_wins(
        got.view(integer), self.view(integer), flat.index_select(0, index), source.view(integer)
    )


def test_backward() -> None:
    """The gradients are those of PyTorch's formula."""
    self, source = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    index = torch.tensor([0, 2, 2, 3, 0])
    with DeterministicMode(simulate="cuda"):
        self.index_copy(0, index, source).square().sum().backward()
    expected = self.detach().clone()
    expected[[0, 2, 3]] = 0
    assert torch.equal(self.grad, 2 * expected)
    result = self.detach().index_copy(0, index, source.detach())
    assert torch.equal(source.grad, 2 * result[index])
