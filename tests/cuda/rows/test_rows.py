"""Every way to add, multiply and assign rows, over layouts, dtypes and schedules."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode.cuda import bytes_of_sum, compile_for, host
from detmode.cuda.rows import assign, sort, sums
from detmode.cuda.rows.assign import assign_rows
from detmode.cuda.rows.shapes import PIECE, Rows
from detmode.cuda.rows.source import SORTED as SORTED_SOURCE
from detmode.cuda.rows.strips import Strips, strips_of
from detmode.cuda.rows.sums import add_rows, multiply_rows
from detmode.cuda.rows.ways import MARK, Way
from detmode.table.conditions import COMPLEX, FLOATING
from detmode.table.inputs import shifted
from detmode.table.samples import Maker
from tests.shared import exact_reductions, exact_sums, last_wins, needs
from tests.shared.selection import todays_dtypes
from tests.shared.strategies import SEEDS, in_schedules, same_bits, tensors

pytestmark = needs.compiler
# The function of this name hides its module.
launching = sys.modules["detmode.cuda.launch"]

INTEGERS, STRIPS = (Way.SINGLY, Way.TOGETHER), "strips"


class Move(NamedTuple):
    """Arguments of ``add_rows`` and the others, and where in ``out`` each element goes."""

    out: Tensor
    index: Tensor
    source: Tensor
    shape: Rows
    to: Tensor

    @property
    def by_rows(self) -> tuple[Way, ...]:
        """The ways that add them in the order of their rows, few ones as one piece."""
        n = self.index.numel()
        few = n <= PIECE or self.shape.rows == 1
        return (Way.SORTED, Way.FEW) if few else (Way.SORTED,)

    @property
    def of_planes(self) -> tuple[str, ...]:
        """The way of elements that lie in planes, if they do."""
        _, rows, inner, _, _ = self.shape
        return (STRIPS,) if inner == 1 and self.index.numel() != rows else ()

    def run(self, move_rows: Callable[..., None], way: object, **options: Any) -> Tensor:
        """``out`` with the rows, moved this way."""
        out = self.out.clone()
        if self.out.storage_offset():
            out = shifted(out)
        if way is STRIPS:
            way = strips(self.shape, 4 if move_rows is assign_rows else _bytes(out, options))
        move_rows(out, self.index, self.source, self.shape, way=way, **options)
        return out


def _bytes(out: Tensor, options: dict[str, Any]) -> int:
    return bytes_of_sum(out.dtype) + 4 * options.get("mean", False)


def strips(shape: Rows, each: int) -> Strips:
    """Strips of a few elements, with so many bytes each: two blocks of two warps take turns."""
    strip = max(100 // each, 1)
    return Strips(2, 64, strip * each, strip, -(-shape.size // strip))


def move_of(out: Tensor, index: Tensor, source: Tensor, shape: Rows) -> Move:
    """Such a move, of contiguous tensors."""
    outer, rows, inner, size, _ = shape
    index = index.view(-1, rows, 1 if index.numel() == rows else inner)
    planes = torch.arange(outer).view(-1, 1, 1) * size
    to = (planes + index % size) * inner + torch.arange(inner)
    return Move(out, index.flatten(), source, shape, to.flatten())


@st.composite
def moves(draw: st.DrawFn, values: Any, dtype: torch.dtype) -> Move:
    """A move of rows, or of elements."""
    by_row = draw(st.booleans())
    rows = draw(st.sampled_from([1, 2, 9, 40, PIECE, PIECE + 1, 130, 300]))
    outer = draw(st.sampled_from([1, 3, 100] if rows == 1 else [1, 3]))
    inner = draw(st.sampled_from([1, 2, 4, 5, 9, 33] if by_row else [1, 1, 3]))
    size = draw(st.sampled_from([1, 2, 5, 33, 50]))
    wraps = by_row and draw(st.booleans())
    spread, maker = draw(st.sampled_from([1, min(2, size), size])), Maker(dtype, seed=draw(SEEDS))
    n = rows if by_row else outer * rows * inner
    index = maker.integers(-spread if wraps else 0, spread, n)
    place = st.sampled_from([Tensor.contiguous, shifted])
    out, source = (draw(values([outer * n * inner], dtype)).contiguous() for n in (size, rows))
    shape = Rows(outer, rows, inner, size, wraps)
    return move_of(draw(place)(out), index, draw(place)(source), shape)


@given(
    data=st.data(),
    dtype=exact_sums.DTYPES,
    alpha=st.sampled_from([1, 1, -1, 0.3, 3]),
    mean=st.booleans(),
    include_self=st.booleans(),
    seed=SEEDS,
)
def test_sums(
    data: st.DataObject, dtype: torch.dtype, alpha: float, mean: bool, include_self: bool, seed: int
) -> None:
    """Sums of rows, and of integers, are exact but for their roundings, in any schedule.

    Few rows have the bits of sorted ones; integers have theirs whatever adds them.
    """
    move = data.draw(moves(tensors, dtype))
    how = {"include_self": include_self, "mean": mean}
    add = partial(move.run, add_rows, alpha=alpha, **how)
    addends = move.source if alpha == 1 else move.source * alpha
    for first, *others in (move.by_rows, INTEGERS + move.of_planes):
        found = in_schedules(lambda way=first: add(way), seed)
        exact_sums.assert_exact(found, move.out, move.to, addends, **how)
        for way in others:
            assert same_bits(in_schedules(lambda way=way: add(way), seed), found), way


@given(data=st.data(), dtype=exact_reductions.DTYPES, include_self=st.booleans(), seed=SEEDS)
def test_products(data: st.DataObject, dtype: torch.dtype, include_self: bool, seed: int) -> None:
    """Products are exact but for their roundings; few rows have the bits of sorted ones."""
    move = data.draw(moves(exact_reductions.values, dtype))
    for way in move.by_rows:
        multiply = partial(move.run, multiply_rows, way, include_self=include_self)
        found = in_schedules(multiply, seed)
        exact_reductions.assert_reduced(
            found, move.out, move.to, move.source, "prod", include_self=include_self
        )
    assert same_bits(found, move.run(multiply_rows, Way.SORTED, include_self=include_self))


@given(data=st.data(), dtype=last_wins.DTYPES, seed=SEEDS)
def test_assignments(data: st.DataObject, dtype: torch.dtype, seed: int) -> None:
    """The last row of each destination stays, bit by bit, in every way and schedule."""
    move = data.draw(moves(last_wins.words, dtype))
    few = (Way.FEW,) if move.index.numel() == move.shape.rows else ()
    in_place = (Way.IN_PLACE,) if dtype.itemsize >= MARK else ()
    for way in (Way.ELECTED, Way.SORTED, *in_place, *few, *move.of_planes):
        found = in_schedules(lambda way=way: move.run(assign_rows, way), seed)
        last_wins.assert_last_wins(found, move.out, move.to, move.source, str(way))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [Rows(1, 300, 1, 20), Rows(2, 150, 3, 9)], ids=str)
def test_what_looks_like_a_position(dtype: torch.dtype, shape: Rows) -> None:
    """Destinations that elect in place, and what is put there, may hold any position themselves.

    Nothing races, and a place that no row names keeps what it holds.
    """
    numbers = torch.arange(4 * shape.addends, dtype=torch.int32).view(dtype)
    out, source = numbers[: shape.destinations].clone(), numbers[: shape.addends].flip(0)
    for seed in range(3):
        index = Maker(torch.int64, seed=seed).integers(0, shape.size - 1, shape.rows)
        move = move_of(out, index, source, shape)
        with host.schedule(seed), host.check_races():
            move.run(assign_rows, Way.IN_PLACE)
        found = in_schedules(lambda move=move: move.run(assign_rows, Way.IN_PLACE), seed)
        last_wins.assert_last_wins(found, out, move.to, source)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16, torch.uint32], ids=str)
@pytest.mark.parametrize("way", [Way.FEW, Way.SORTED, Way.ELECTED])
def test_dtypes_without_arithmetic(dtype: torch.dtype, way: Way) -> None:
    """Bits move whatever they mean."""
    out, source = (last_wins.filled(dtype, [3 * n], seed=n) for n in (5, 9))
    index = torch.tensor([0, 4, 4, 2, 0, 2, 2, 4, 1])
    move = move_of(out, index, source, Rows(1, 9, 3, 5))
    found = in_schedules(lambda: move.run(assign_rows, way), 3)
    integer = assign.WORDS[dtype.itemsize]
    found, out, source = (each.view(integer) for each in (found, out, source))
    last_wins.assert_last_wins(found, out, move.to, source)


@given(seed=SEEDS, dtype=exact_sums.DTYPES, spread=st.sampled_from([1, 2, 50]), mean=st.booleans())
def test_long_runs_of_duplicates(seed: int, dtype: torch.dtype, spread: int, mean: bool) -> None:
    """Several levels of carries, and the integers beside them; a mean counts across all levels."""
    move = many(dtype, seed, spread)
    for way in (Way.SORTED, Way.SINGLY):
        found = in_schedules(lambda way=way: move.run(add_rows, way, mean=mean), seed)
        exact_sums.assert_exact(found, move.out, move.to, move.source, mean=mean)


def many(dtype: torch.dtype, seed: int, spread: int) -> Move:
    """Rows enough for several levels of carries."""
    maker = Maker(dtype, seed=seed)
    index = maker.integers(0, spread, 4500)
    return move_of(maker.normal(100), index, maker.normal(9000), Rows(1, 4500, 2, 50))


@needs.nvrtc
@pytest.mark.parametrize("kernel", ["sorted_rows", "sorted_carries"])
def test_a_sum_is_compiled_without_the_division_of_a_mean(kernel: str) -> None:
    """It is most of a mean's instructions."""
    entries = (f"{kernel}<row_{what}<float>, 2, int32_t>" for what in ("sum", "mean"))
    codes = [compile_for(SORTED_SOURCE, "compute_80", (entry,)).decode() for entry in entries]
    assert ["div.rn.f64" in code for code in codes] == [False, True]


@pytest.mark.parametrize("columns", [127, 128, 129, 131, 132, 255, 257])
def test_rows_of_any_width(columns: int) -> None:
    """Rows around those that are read 16 bytes at a time, and whole numbers of them or not."""
    maker, shape = Maker(torch.float32, seed=columns), Rows(1, 90, columns, 9)
    out, source = maker.normal(9 * columns), maker.normal(90 * columns)
    move = move_of(out, maker.zipf(90, 9), source, shape)
    # None: what reads 16 bytes at a time is a choice.
    for way in (Way.SORTED, None):
        found = in_schedules(lambda way=way: move.run(add_rows, way), 4)
        exact_sums.assert_exact(found, out, move.to, source)
    for way in (Way.SORTED, Way.ELECTED, Way.IN_PLACE):
        found = in_schedules(lambda way=way: move.run(assign_rows, way), 4)
        last_wins.assert_last_wins(found, out, move.to, source)


@pytest.mark.parametrize("copies", [1, 8, 700])
@pytest.mark.parametrize("dtype", todays_dtypes(FLOATING + COMPLEX), ids=str)
def test_wide_rows_are_added_as_narrow_ones(dtype: torch.dtype, copies: int) -> None:
    """Rows of 512 bytes and more have the bits of narrow rows, in runs short and long.

    What is carried of them races with nothing.
    """
    maker = Maker(dtype, seed=copies)
    columns = 528 // dtype.itemsize
    index = torch.arange(2600).div(copies, rounding_mode="floor")
    index = index[torch.randperm(2600, generator=torch.Generator().manual_seed(copies))]
    out, source = maker.normal(2600 * columns), maker.normal(2600 * columns)
    move = move_of(out, index, source, Rows(1, 2600, columns, 2600))
    found = [
        in_schedules(lambda way=way: move.run(add_rows, way), 3) for way in (Way.WIDE, Way.SORTED)
    ]
    assert same_bits(*found)
    if dtype == torch.float32 and copies == 8:
        with host.check_races():
            move.run(add_rows, Way.WIDE)


@pytest.mark.parametrize("way", [Way.FEW, Way.SORTED, Way.WIDE])
@pytest.mark.parametrize("dtype", todays_dtypes([torch.float16, torch.bfloat16]), ids=str)
def test_sums_of_16_bits_have_one_nan(dtype: torch.dtype, way: Way) -> None:
    """NaNs of any sign and payload, and infinities that cancel, sum to 0x7fff."""
    infinity = torch.tensor(torch.inf, dtype=dtype).view(torch.int16)
    payload, negative = infinity + 1, infinity | -(2**15)
    rows = torch.stack([payload, payload | negative, infinity, negative])
    source = rows[:, None].expand(4, 256).contiguous().view(dtype)
    out = torch.zeros(3 * 256, dtype=dtype)
    index = torch.tensor([0, 1, 2, 2])
    add_rows(out, index, source, Rows(1, 4, 256, 3), way=way)
    assert (out.view(torch.int16) == 0x7FFF).all()


# A whole turn of four warps and part of another; one that ends within a warp.
@pytest.mark.parametrize(("rows", "columns"), [(260, 1), (37, 5)])
@pytest.mark.parametrize("dtype", todays_dtypes(FLOATING + COMPLEX), ids=str)
def test_elements_that_a_thread_takes_at_once(dtype: torch.dtype, rows: int, columns: int) -> None:
    """They have the sums of those that come one after the other, and no data race."""
    maker = Maker(dtype, seed=7)
    index, shape = maker.integers(0, 3, rows * columns), Rows(1, rows, columns, 3)
    move = move_of(maker.normal(3 * columns), index, maker.normal(rows * columns), shape)
    found = []
    with patch.multiple(launching, MAX_GRID=1, BLOCK=32):
        for way in INTEGERS:
            with host.check_races():
                move.run(add_rows, way)
            found.append(in_schedules(lambda way=way: move.run(add_rows, way), 0))
    assert same_bits(*found)


SORTED: dict[str, tuple[Callable[..., None], Way]] = {
    "sum": (add_rows, Way.SORTED),
    "mean": (partial(add_rows, mean=True), Way.SORTED),
    "product": (multiply_rows, Way.SORTED),
    "assignment": (assign_rows, Way.SORTED),
}


@pytest.mark.parametrize("name", [*SORTED, "owner"])
def test_positions_of_any_width_are_alike(name: str) -> None:
    """Positions of 32 and 64 bits lead to the same bits, over several levels of carries; and so do
    owners of 64 bits, for which no sample is long enough.
    """
    move_rows, way = (SORTED | {"owner": (assign_rows, Way.ELECTED)})[name]
    move, found = many(torch.float32, 1, 50), []
    for dtype in (torch.int32, torch.int64):
        with (
            patch.object(assign, "key_dtype", lambda _, d=dtype: d),
            patch.object(sort, "key_dtype", lambda _, d=dtype: d),
        ):
            found.append(in_schedules(lambda: move.run(move_rows, way), 3))
    assert same_bits(*found)


@pytest.mark.parametrize("name", ["sum", "mean", "product"])
def test_levels_of_carries(name: str) -> None:
    """A block that goes on from level to level reads nothing that is not yet written, and has the
    bits of a launch for each level, which many carries have.
    """
    (move_rows, way), move, found = SORTED[name], many(torch.float32, 2, 3), []
    for most in (sums.MOST_OWNED, 0):
        with patch.object(sums, "MOST_OWNED", most):
            with host.check_races():
                move.run(move_rows, way)
            found.append(in_schedules(lambda: move.run(move_rows, way), 3))
    assert same_bits(*found)


@pytest.mark.parametrize("dtype", todays_dtypes([torch.float32, torch.float64, torch.complex64]))
@pytest.mark.parametrize(
    ("move_rows", "options"),
    [(add_rows, {}), (add_rows, {"mean": True, "include_self": False}), (assign_rows, {})],
    ids=["sum", "mean", "assignment"],
)
def test_strips_of_one_block_wait_for_one_another(
    move_rows: Callable[..., None], options: dict[str, bool], dtype: torch.dtype
) -> None:
    """A block writes what it collects of a strip after it has read the strip before."""
    maker, shape = Maker(dtype, seed=4), Rows(6, 70, 1, 40)
    move = move_of(maker.normal(240), maker.integers(0, 40, 420), maker.normal(420), shape)
    in_memory = Way.ELECTED if move_rows is assign_rows else Way.SINGLY
    with host.check_races():
        move.run(move_rows, STRIPS, **options)
    found = in_schedules(lambda: move.run(move_rows, STRIPS, **options), 5)
    assert same_bits(found, move.run(move_rows, in_memory, **options))


@pytest.mark.parametrize(
    ("move_rows", "size", "each", "in_memory"),
    [(add_rows, 8000, 12, Way.SINGLY), (assign_rows, 20000, 4, Way.ELECTED)],
    ids=["sum", "assignment"],
)
def test_the_shared_memory_of_a_gpu_changes_no_bit(
    move_rows: Callable[..., None], size: int, each: int, in_memory: Way
) -> None:
    """Planes cut for a block of Turing, Ada and Hopper have the bits of those in memory."""
    maker, shape = Maker(torch.float32, seed=5), Rows(64, 100, 1, size)
    index, source = maker.integers(0, size, 6400), maker.normal(6400)
    move = move_of(maker.normal(64 * size), index, source, shape)
    cuts = [strips_of(64, size, 100, each, most * 1024, 20) for most in (64, 99, 227)]
    assert [cut and cut.strips for cut in cuts] == [2, 1, 1]
    expected = move.run(move_rows, in_memory)
    assert all(same_bits(move.run(move_rows, cut), expected) for cut in cuts)


@given(data=st.data(), dtype=exact_sums.DTYPES, alpha=st.sampled_from([1, -1, 0.3]))
def test_sums_of_a_single_row(data: st.DataObject, dtype: torch.dtype, alpha: float) -> None:
    """At most one addend reaches a destination: each way has the bits of one addition."""
    by_row, outer, inner, size = (
        data.draw(st.sampled_from(values)) for values in ((True, False), (1, 90), (1, 5), (1, 40))
    )
    maker, shape = Maker(dtype, seed=data.draw(SEEDS)), Rows(outer, 1, inner, size)
    index = maker.integers(0, size, 1 if by_row else outer * inner)
    out, source = (data.draw(tensors([outer * n * inner], dtype)) for n in (size, 1))
    move = move_of(out.contiguous(), index, source.contiguous(), shape)
    one, by_sort, *others = (
        move.run(add_rows, way, alpha=alpha) for way in (None, Way.SORTED, *INTEGERS)
    )
    assert same_bits(by_sort, one)
    # Integers make another NaN on a CPU.
    numbers = [torch.where(each.isnan(), torch.zeros_like(each), each) for each in (one, *others)]
    assert all(same_bits(each, numbers[0]) for each in numbers)


@pytest.mark.parametrize("by_row", [True, False])
def test_a_single_row_is_one_launch(by_row: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its length: as where the targets of many classes are gathered."""
    entries: list[str] = []
    launch = host.launch_blocks

    def noted(source: Any, entry: str, *rest: Any) -> None:
        entries.append(entry)
        launch(source, entry, *rest)

    monkeypatch.setattr(host, "launch_blocks", noted)
    shape = Rows(300, 1, 1, 400) if not by_row else Rows(1, 1, 70_000, 2)
    index = torch.arange(1 if by_row else 300)
    move = move_of(torch.zeros(shape.destinations), index, torch.ones(shape.addends), shape)
    results = [move.run(each, None) for each in (add_rows, multiply_rows, assign_rows)]
    assert [entry.partition("<")[0] for entry in entries] == ["few_rows", "few_rows", "assign_last"]
    assert [int(result.sum()) for result in results] == [shape.addends, 0, shape.addends]
    with pytest.raises(host.DeviceAssert, match=r"`in_range` failed"):
        move._replace(index=index + 400).run(add_rows, None)


@pytest.mark.parametrize("position", [-1, 5, 2**16, 2**32])
@pytest.mark.parametrize("way", [Way.FEW, Way.SORTED])
@pytest.mark.parametrize("name", SORTED)
def test_an_index_is_checked_before_rows_are_moved(name: str, way: Way, position: int) -> None:
    """A position out of range traps before a thread writes, and passes for no other."""
    move_rows, _ = SORTED[name]
    move = move_of(
        torch.zeros(20), torch.tensor([4, position, 0]), torch.ones(12), Rows(1, 3, 4, 5)
    )
    file = r"sort\.cu" if way is Way.SORTED else ""
    with pytest.raises(host.DeviceAssert, match=rf"{file}.*`in_range` failed"):
        move.run(move_rows, way)


@pytest.mark.parametrize(("include_self", "mean"), [(True, 3.0), (False, 4.0)])
@pytest.mark.parametrize("way", [Way.FEW, Way.SORTED, *INTEGERS, STRIPS])
def test_means_count_the_initial_value(way: object, include_self: bool, mean: float) -> None:
    """Means count it where it is a part of the sum, in each way; other elements stay."""
    index, source = torch.tensor([0, 0]), torch.tensor([2.0, 6.0])
    move = move_of(torch.tensor([1.0, 7.0]), index, source, Rows(1, 2, 1, 2))
    assert move.run(add_rows, way, include_self=include_self, mean=True).tolist() == [mean, 7.0]
