"""Sums, products, means, extrema and assignments by index, over shapes, strides and dtypes."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any
from unittest import mock

import exact_reductions
import exact_sums
import last_wins
import needs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    LAYOUTS,
    SEEDS,
    WAYS,
    added_by,
    assigned_by,
    chosen,
    in_place_and_not,
    in_schedules,
    places,
    planned_with,
    same_bits,
    tensors,
)
from torch import Tensor

from detmode import DeterministicMode
from detmode.cuda import host
from detmode.cuda.rows import assign, shapes, sort, sums
from detmode.rules.index import launch
from detmode.rules.index_copy.launch import index_copy
from detmode.rules.index_reduce.launch import index_reduce, mean_of_integers
from detmode.rules.scatter.launch import scatter
from detmode.rules.scatter_assign.launch import scatter as scatter_assign
from detmode.rules.scatter_reduce.launch import scatter_reduce
from detmode.table.conditions import COMPLEX, FLOATING
from detmode.table.inputs import shifted
from detmode.table.samples import Maker

pytestmark = needs.compiler


@st.composite
def rows(
    draw: st.DrawFn, values: Any, dtype: torch.dtype
) -> tuple[Tensor, int, Tensor, Tensor, Tensor]:
    """Arguments of a call by rows; then the positions in ``self`` where its source goes."""
    shape, dim, lengths, spread = draw(places())
    n = lengths[dim] if shape else 1
    index = Maker(dtype, seed=draw(SEEDS)).integers(0, spread, n)
    self, source = draw(values(shape, dtype)), draw(values(lengths, dtype))
    flat = torch.arange(self.numel()).view(shape)
    to = flat.index_select(dim, index) if shape else flat
    index = draw(st.sampled_from([index, index.int(), index.repeat_interleave(2)[::2]]))
    return self, dim, index, source, to


@st.composite
def indexed(
    draw: st.DrawFn, values: Any, dtype: torch.dtype
) -> tuple[Tensor, list[Tensor | None], Tensor, Tensor]:
    """Arguments of an index_put: indices that broadcast, stand apart, or are masks.

    Then the positions in ``self`` where the values go.
    """
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
    return self, indices, given, to


@given(data=st.data(), dtype=exact_sums.DTYPES, sorts=WAYS, seed=SEEDS)
def test_index_add(data: st.DataObject, dtype: torch.dtype, sorts: bool | None, seed: int) -> None:
    """Sums are exact but for one rounding, in any schedule, in place and not."""
    *arguments, source, to = data.draw(rows(tensors, dtype))
    alpha, layout = data.draw(st.sampled_from([1, 1, 1, -1, 0.3, 3])), data.draw(LAYOUTS)
    with added_by(sorts):
        got = in_place_and_not(
            launch.index_add, *arguments, source, alpha=alpha, seed=seed, layout=layout
        )
    exact_sums.assert_exact(got, arguments[0], to, source if alpha == 1 else source * alpha)


@given(data=st.data(), dtype=exact_sums.DTYPES, sorts=WAYS, seed=SEEDS)
def test_accumulating_index_put(
    data: st.DataObject, dtype: torch.dtype, sorts: bool | None, seed: int
) -> None:
    """Accumulation is exact but for one rounding, in any schedule, in place and not."""
    self, indices, values, to = data.draw(indexed(tensors, dtype))
    layout = data.draw(LAYOUTS)
    with added_by(sorts):
        got = in_place_and_not(
            launch.index_put, self, indices, values, True, seed=seed, layout=layout
        )
    exact_sums.assert_exact(got, self, to, values.expand(to.shape))


@given(data=st.data(), dtype=exact_sums.DTYPES, seed=SEEDS)
def test_few_rows_are_added_as_sorted_ones(
    data: st.DataObject, dtype: torch.dtype, seed: int
) -> None:
    """Rows of one piece have the bits of the sort, in one launch: sums, means and products."""
    *arguments, source, _ = data.draw(rows(tensors, dtype))
    ways: list[Callable[[], Tensor]] = [
        lambda: launch.index_add(*arguments, source),
        lambda: scatter(*arguments[:2], _of_elements(*arguments[1:], source), source),
    ]
    if not dtype.is_complex:
        how = data.draw(st.sampled_from(["mean", "prod"]))
        ways += [lambda: index_reduce(*arguments, source, how)]
    for way in ways:
        found = []
        for few in (True, False):
            with chosen(sums, "sorts_rows", True), chosen(sums, "are_few", few):
                found.append(in_schedules(way, seed))
        assert same_bits(*found)


def _of_elements(dim: int, index: Tensor, source: Tensor) -> Tensor:
    """The index of rows for each element of them."""
    if not source.dim():
        return index.long().reshape(())
    shape = [-1 if d == dim % source.dim() else 1 for d in range(source.dim())]
    return index.long().view(shape).expand(source.shape).contiguous()


@given(seed=SEEDS, dtype=exact_sums.DTYPES, spread=st.sampled_from([1, 2, 50]))
def test_both_ways_meet(seed: int, dtype: torch.dtype, spread: int) -> None:
    """Long runs of duplicates: several levels of carries, and the integers beside them."""
    maker = Maker(dtype, seed=seed)
    self, source = maker.normal(50, 2), maker.normal(4500, 2)
    index = maker.integers(0, spread, 4500)
    for sorts in (True, False):
        with added_by(sorts):
            got = in_schedules(lambda: launch.index_add(self, 0, index, source), seed)
        exact_sums.assert_exact(got, self, torch.arange(100).view(50, 2)[index], source)


def test_no_more_rows_are_sorted_than_a_gpu_sorts() -> None:
    """Rows whose sort is cheaper are sorted while int32 has their positions, and added beyond."""

    def sorts(n: int) -> bool:
        return shapes.sorts_rows(shapes.Rows(1, n, 1, 2), torch.complex128)

    assert sorts(2**31 - 1)
    assert not sorts(2**31)


@pytest.mark.parametrize("columns", [127, 128, 129, 131, 132, 255, 257])
@pytest.mark.parametrize("name", ["sum", "copy"])
def test_rows_of_any_width(name: str, columns: int) -> None:
    """Rows around those that are read 16 bytes at a time, and whole numbers of them or not."""
    maker = Maker(torch.float32, seed=columns)
    self, index, rows = maker.normal(9, columns), maker.zipf(90, 9), maker.normal(90, columns)
    with chosen(sums, "sorts_rows", True):
        found = in_schedules(lambda: SORTING[name](self, index, rows), 4)
    if name == "copy":
        last_wins.assert_last_wins(
            found, self, torch.arange(self.numel()).view_as(self)[index], rows
        )
    else:
        exact_sums.assert_exact(found, self, torch.arange(self.numel()).view_as(self)[index], rows)


@pytest.mark.parametrize("copies", [1, 2, 8, 70, 700])
@pytest.mark.parametrize("dtype", [*FLOATING, *COMPLEX], ids=str)
def test_wide_rows_are_added_as_narrow_ones(dtype: torch.dtype, copies: int) -> None:
    """Rows of 512 bytes and more have the bits of narrow rows, in runs short and long.

    What is carried of them races with nothing.
    """
    maker = Maker(dtype, seed=copies)
    columns = 528 // dtype.itemsize
    index = torch.arange(2600).div(copies, rounding_mode="floor")
    index = index[torch.randperm(2600, generator=torch.Generator().manual_seed(copies))]
    self, source = maker.normal(2600, columns), maker.normal(2600, columns)
    found = []
    for wide in (True, False):
        with chosen(sums, "are_wide", wide):
            found.append(in_schedules(lambda: launch.index_add(self, 0, index, source), 3))
    assert same_bits(*found)
    if dtype == torch.float32:
        with host.check_races(), chosen(sums, "are_wide", True):
            launch.index_add(self, 0, index, source)


SORTING: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "sum": lambda self, index, rows: launch.index_add(self, 0, index, rows),
    "product": lambda self, index, rows: index_reduce(self, 0, index, rows, "prod"),
    "mean": lambda self, index, rows: index_reduce(self, 0, index, rows, "mean"),
    "copy": lambda self, index, rows: index_copy(self, 0, index, rows),
}


@pytest.mark.parametrize(("name", "elects"), [*((name, False) for name in SORTING), ("copy", True)])
def test_positions_of_any_width_are_alike(
    name: str, elects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions of 32 and 64 bits lead to the same bits, over several levels of carries; and so do
    owners of 64 bits, for which no sample is long enough.
    """
    monkeypatch.setattr(sums, "sorts_rows", lambda *shapes: True)
    monkeypatch.setattr(assign, "elects", lambda *shapes: elects)
    monkeypatch.setattr(assign, "are_few", lambda *shapes: False)
    maker = Maker(torch.float32, seed=1)
    self, index, rows = maker.normal(50, 4), maker.zipf(4500, 50), maker.normal(4500, 4)
    found = []
    for dtype in (torch.int32, torch.int64):
        keys = [
            mock.patch.object(module, "key_dtype", lambda _, d=dtype: d)
            for module in (assign, sort, sums)
        ]
        with planned_with(*keys):
            found.append(in_schedules(lambda: SORTING[name](self, index, rows), 3))
    assert same_bits(*found)


@pytest.mark.parametrize("name", ["sum", "product"])
def test_levels_of_carries_wait_for_one_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that goes on from level to level reads nothing that is not yet written."""
    monkeypatch.setattr(sums, "sorts_rows", lambda *shapes: True)
    maker = Maker(torch.float32, seed=2)
    self, index, rows = maker.normal(3, 2), maker.integers(0, 3, 2500), maker.normal(2500, 2)
    with host.check_races():
        SORTING[name](self, index, rows)


IN_STRIPS: dict[str, Callable[[Tensor, int, Tensor, Tensor], Tensor]] = {
    "sum": scatter,
    "mean": partial(scatter_reduce, reduce="mean", include_self=False),
    "assignment": scatter_assign,
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*product(IN_STRIPS, (torch.float32, torch.float64)), ("sum", torch.complex64)],
    ids=str,
)
def test_strips_of_one_block_wait_for_one_another(name: str, dtype: torch.dtype) -> None:
    """A block writes what it collects of a strip after it has read the strip before."""
    maker = Maker(dtype, seed=4)
    planes = maker.normal(6, 40), 1, maker.integers(0, 40, 6, 70), maker.normal(6, 70)
    with added_by(False), assigned_by(True):
        expected = IN_STRIPS[name](*planes)
    with added_by(None), assigned_by(None):
        with host.check_races():
            IN_STRIPS[name](*planes)
        found = in_schedules(lambda: IN_STRIPS[name](*planes), 5)
    assert same_bits(found, expected)


@needs.compiler
def test_alphas_that_are_equal_are_told_apart() -> None:
    """-0.0 equals 0.0, yet a sum by one of them has the other sign; both have one plan's shapes."""
    self, index, rows = torch.full((2,), -0.0), torch.tensor([0]), torch.ones(1)
    for alpha, negative in ((0.0, False), (-0.0, True), (0.0, False)):
        result = launch.index_add(self, 0, index, rows, alpha=alpha)
        assert torch.signbit(result).tolist() == [negative, True]


@pytest.mark.parametrize("position", [-1, 5, 2**16, 2**32])
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("name", SORTING)
def test_an_index_is_checked_before_rows_are_moved(
    name: str, few: bool, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A position out of range traps before a thread writes, and passes for no other."""
    monkeypatch.setattr(sums, "sorts_rows", lambda *shapes: True)
    monkeypatch.setattr(assign, "elects", lambda *shapes: False)
    monkeypatch.setattr("detmode.cuda.rows.indexed.check_on_host", lambda *arguments: None)
    monkeypatch.setattr(sums, "are_few", lambda *shapes: few)
    index = torch.tensor([4, position, 0])
    monkeypatch.setattr(assign, "are_few", lambda *shapes: few)
    file = "sort" if not few else "assign" if name == "copy" else "few_rows"
    with planned_with(), pytest.raises(host.DeviceAssert, match=rf"{file}\.cu.*`in_range` failed"):
        SORTING[name](torch.zeros(5, 4), index, torch.ones(3, 4))


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["amax", "amin", "mean", "prod"])
@given(data=st.data(), dtype=exact_reductions.DTYPES, seed=SEEDS)
def test_index_reduce(
    reduce: str, include_self: bool, data: st.DataObject, dtype: torch.dtype, seed: int
) -> None:
    """Every reduction is exact but for its roundings, in any schedule, in place and not."""
    *arguments, source, to = data.draw(rows(exact_reductions.values, dtype))
    self = arguments[0]
    of_integers = reduce == "mean" and not dtype.is_floating_point
    function = mean_of_integers if of_integers else index_reduce
    how = {"include_self": include_self}
    layout = data.draw(LAYOUTS)
    got = in_place_and_not(function, *arguments, source, reduce, seed=seed, layout=layout, **how)
    assert got.is_contiguous()
    if of_integers and source.numel():
        expected = torch.ops.aten.index_reduce(*arguments, source, reduce, **how)
        assert torch.equal(got, expected)
    elif reduce == "mean":
        exact_sums.assert_exact(got, self, to, source, mean=True, **how)
    else:
        exact_reductions.assert_reduced(got, self, to, source, reduce, **how)


@given(data=st.data(), dtype=last_wins.DTYPES, elects=WAYS, seed=SEEDS)
def test_index_copy(
    data: st.DataObject, dtype: torch.dtype, elects: bool | None, seed: int
) -> None:
    """The last row of each destination stays, bit by bit, in place and not, in any schedule."""
    self, dim, index, source, to = data.draw(rows(last_wins.words, dtype))
    # One element into the storage, rows are aligned to nothing but their elements.
    self = data.draw(st.sampled_from([Tensor.contiguous, shifted]))(self)
    with assigned_by(elects):
        got = in_place_and_not(index_copy, self, dim, index.long(), source, seed=seed)
    last_wins.assert_last_wins(got, self, to, source)


@given(data=st.data(), dtype=last_wins.DTYPES, elects=WAYS, seed=SEEDS)
def test_assigning_index_put(
    data: st.DataObject, dtype: torch.dtype, elects: bool | None, seed: int
) -> None:
    """The same for indices that broadcast, stand apart, or are negative; values may broadcast."""
    self, indices, values, to = data.draw(indexed(last_wins.words, dtype))
    with assigned_by(elects):
        got = in_place_and_not(launch.index_put, self.contiguous(), indices, values, seed=seed)
    last_wins.assert_last_wins(got, self, to, values.expand(to.shape), str(indices))


@pytest.mark.parametrize("set_places", [1, 2])
@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 33)], ids=str)
def test_a_mask_beside_a_repeated_index(shape: tuple[int, ...], set_places: int) -> None:
    """A mask names no place twice, but an index beside it does, also if one place is set."""
    mask = torch.arange(shape[0]) < set_places
    index = torch.tensor([3] * 40 if set_places == 1 else [3, 3])
    values = Maker(torch.float32, seed=0).normal(index.numel(), *shape[2:])
    expected = torch.zeros(shape)
    for place, value in zip(mask.nonzero().flatten().expand(index.numel()), values):
        expected[place, 3] = value
    for seed in range(8):
        found = in_schedules(
            lambda: launch.index_put(torch.zeros(shape), [mask, index], values), seed
        )
        assert same_bits(found, expected)


NOTHING: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "index_add_": lambda x, index, rows: x.index_add_(0, index, rows),
    "index_copy_": lambda x, index, rows: x.index_copy_(0, index, rows),
    "index_reduce_": lambda x, index, rows: x.index_reduce_(0, index, rows, "prod"),
    "index_put_": lambda x, index, rows: x.index_put_((index,), rows),
    "accumulating": lambda x, index, rows: x.index_put_((index,), rows, accumulate=True),
    "broadcasting": lambda x, index, rows: x.index_put_((index,), x[0].clone(), accumulate=True),
    "put_": lambda x, index, rows: x.put_(index, rows[:, 0]),
    "put_ accumulating": lambda x, index, rows: x.put_(index, rows[:, 0], accumulate=True),
    "scatter_": lambda x, index, rows: x.scatter_(0, index[:, None], x.clone()),
    "scatter_add_": lambda x, index, rows: x.scatter_add_(0, index[:, None], x.clone()),
    "scatter_reduce_": lambda x, index, rows: x.scatter_reduce_(
        0, index[:, None], x.clone(), "mean", include_self=False
    ),
}


@pytest.mark.parametrize("name", NOTHING)
def test_an_empty_index_changes_nothing(name: str) -> None:
    """Nor where the source or the values have elements: each keeps its bits, NaNs' too."""
    before = torch.tensor([[1.0, -0.0], [torch.nan, 2.0]])
    x, index = before.clone(), torch.zeros(0, dtype=torch.int64)
    with DeterministicMode(simulate="cuda") as mode:
        assert NOTHING[name](x, index, torch.zeros(0, 2)) is x
    assert same_bits(x, before)
    assert {record.action for record in mode.records} == {"substitute"}


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
@pytest.mark.parametrize("elects", [True, False, None])
def test_dtypes_without_arithmetic(dtype: torch.dtype, elects: bool | None) -> None:
    """Bits move whatever they mean."""
    self, source = (last_wins.filled(dtype, [n, 3], seed=n) for n in (5, 9))
    index = torch.tensor([0, 4, 4, 2, 0, 2, 2, 4, 1])
    with assigned_by(elects):
        got = in_schedules(lambda: index_copy(self, 0, index, source), 3)
    integer = assign.WORDS[dtype.itemsize]
    got, self, source = (each.view(integer) for each in (got, self, source))
    last_wins.assert_last_wins(got, self, torch.arange(15).view(5, 3)[index], source)


@pytest.mark.parametrize("function", [launch.index_add, partial(index_reduce, reduce="prod")])
def test_vector_is_no_source_for_a_scalar(function: Callable[..., Tensor]) -> None:
    """As in ATen; a scalar is one."""
    index = torch.tensor([0])
    with pytest.raises(RuntimeError, match="source tensor shape must match self"):
        function(torch.ones(()), 0, index, torch.ones(1))
    assert function(torch.ones(()), 0, index, torch.ones(())).shape == ()
