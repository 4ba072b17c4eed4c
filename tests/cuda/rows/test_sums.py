"""Sums of what comes to a place, whichever family brings it, over shapes, strides and dtypes."""

import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode import DeterministicMode
from detmode.cuda import host
from detmode.cuda.rows import assign, shapes, sort, sums
from detmode.cuda.rows.shapes import MOST_EMPTY
from detmode.rules.index import launch
from detmode.rules.index_copy.launch import index_copy
from detmode.rules.index_reduce.launch import index_reduce
from detmode.rules.put.launch import put
from detmode.rules.scatter.launch import scatter
from detmode.rules.scatter_assign.launch import scatter as scatter_assign
from detmode.rules.scatter_reduce.launch import scatter_reduce
from detmode.table.conditions import COMPLEX, FLOATING
from detmode.table.samples import Maker
from tests.shared import destinations, exact_sums, last_wins, needs
from tests.shared.strategies import (
    LAYOUTS,
    SEEDS,
    WAYS,
    added_by,
    assigned_by,
    chosen,
    in_place_and_not,
    in_schedules,
    planned_with,
    same_bits,
    tensors,
)

pytestmark = needs.compiler
# The function of this name hides its module.
launching = sys.modules["detmode.cuda.launch"]

SUMS: dict[str, tuple[Any, Any, dict[str, list[Any]]]] = {
    "index_add": (launch.index_add, destinations.rows, {"alpha": [1, 1, 1, -1, 0.3, 3]}),
    "index_put": (partial(launch.index_put, accumulate=True), destinations.indexed, {}),
    "put": (partial(put, accumulate=True), destinations.placed, {}),
    "scatter": (scatter, destinations.scattered, {}),
    "scatter_reduce": (
        scatter_reduce,
        destinations.scattered,
        {"reduce": ["sum", "mean"], "include_self": [True, False]},
    ),
}
"""Functions that add, with what they take, and other arguments."""


@pytest.mark.parametrize("op", SUMS)
@given(data=st.data(), dtype=exact_sums.DTYPES, sorts=WAYS, seed=SEEDS)
def test_sums_are_exact(
    op: str, data: st.DataObject, dtype: torch.dtype, sorts: bool | None, seed: int
) -> None:
    """But for one rounding, a mean's but for two, in any schedule, in place and not."""
    function, calls, options = SUMS[op]
    call = data.draw(calls(tensors, dtype))
    how = {name: data.draw(st.sampled_from(values)) for name, values in options.items()}
    with added_by(sorts):
        layout = data.draw(LAYOUTS)
        got = in_place_and_not(function, *call.arguments, **how, seed=seed, layout=layout)
    alpha, include_self = how.get("alpha", 1), how.get("include_self", True)
    addends = call.values if alpha == 1 else call.values * alpha
    mean = how.get("reduce") == "mean"
    exact_sums.assert_exact(
        got, call.arguments[0], call.to, addends, include_self=include_self, mean=mean
    )


@given(data=st.data(), dtype=exact_sums.DTYPES, seed=SEEDS)
def test_few_rows_are_added_as_sorted_ones(
    data: st.DataObject, dtype: torch.dtype, seed: int
) -> None:
    """Rows of one piece have the bits of the sort, in one launch: sums, means and products."""
    *arguments, source = data.draw(destinations.rows(tensors, dtype)).arguments
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
            patch.object(module, "key_dtype", lambda _, d=dtype: d)
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
    file = "sort" if not few else "assign" if name == "copy" else "sums"
    with planned_with(), pytest.raises(host.DeviceAssert, match=rf"{file}\.cu.*`in_range` failed"):
        SORTING[name](torch.zeros(5, 4), index, torch.ones(3, 4))


@given(
    data=st.data(),
    dtype=exact_sums.DTYPES,
    sizes=st.tuples(st.integers(2, 4), st.integers(2, 80), st.integers(1, 60)),
    seed=SEEDS,
    reduce=st.sampled_from(["sum", "mean"]),
    include_self=st.booleans(),
)
def test_shared_memory_does_not_change_bits(
    data: st.DataObject,
    dtype: torch.dtype,
    sizes: tuple[int, int, int],
    seed: int,
    reduce: str,
    include_self: bool,
) -> None:
    """Sums and means of planes, a strip of which a block adds, are those of integers in memory."""
    planes, rows, size = sizes
    self, src = data.draw(tensors([planes, size], dtype)), data.draw(tensors([planes, rows], dtype))
    index = Maker(dtype, seed=seed).integers(0, size, planes, rows)

    def added() -> Tensor:
        if dtype.is_complex:
            return scatter(self, 1, index, src)
        return scatter_reduce(self, 1, index, src, reduce, include_self=include_self)

    with added_by(False):
        expected = in_schedules(added, seed)
    with added_by(None), patch.object(sums, "_strips", wraps=sums._strips) as made:
        assert same_bits(in_schedules(added, seed), expected)
    assert made.called or size > MOST_EMPTY * rows


@pytest.mark.parametrize("sorts", [True, False])
@pytest.mark.parametrize(("include_self", "mean"), [(True, 3.0), (False, 4.0)])
def test_means_count_the_initial_value(sorts: bool, include_self: bool, mean: float) -> None:
    """Means count it where it is a part of the sum, in each way; other elements stay."""
    self, index = torch.tensor([1.0, 7.0]), torch.tensor([0, 0])
    with added_by(sorts):
        found = scatter_reduce(
            self, 0, index, torch.tensor([2.0, 6.0]), "mean", include_self=include_self
        )
    assert found.tolist() == [mean, 7.0]


# A whole turn of four warps and part of another; one that ends within a warp.
@pytest.mark.parametrize(("rows", "columns"), [(260, 1), (37, 5)])
@pytest.mark.parametrize("dtype", FLOATING + COMPLEX, ids=str)
def test_elements_that_a_thread_takes_at_once(dtype: torch.dtype, rows: int, columns: int) -> None:
    """They have the sums of those that come one after the other, and no data race."""
    m = Maker(dtype, seed=7)
    self, src = m.normal(3, columns), m.normal(rows, columns)
    index = m.integers(0, 3, rows, columns)
    few = patch.multiple(launching, MAX_GRID=1, BLOCK=32)

    def summed(many: int) -> Tensor:
        with planned_with(patch.object(sums, "MANY", many), few), chosen(sums, "sorts_rows", False):
            with host.check_races():
                scatter(self, 0, index, src)
            return in_schedules(lambda: scatter(self, 0, index, src), 0)

    assert same_bits(summed(0), summed(2**62))


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
