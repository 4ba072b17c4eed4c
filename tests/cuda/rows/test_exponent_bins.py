"""Sums in bins by exponent, beside sums of fractions that are rounded once."""

import math
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode import DeterministicMode
from detmode.cuda import ctype, host, launch
from detmode.cuda.rows import exponent_bins
from detmode.cuda.rows.exponent_bins import BINS, MOST_ADDENDS, SOURCE
from detmode.cuda.rows.shapes import Rows
from detmode.cuda.rows.sums import add_rows
from detmode.cuda.rows.ways import Way
from detmode.table.inputs import shifted
from detmode.table.samples import Maker
from tests.shared import needs
from tests.shared.exact_sums import nearest
from tests.shared.selection import todays_dtypes
from tests.shared.strategies import SEEDS, in_schedules, same_bits

pytestmark = needs.compiler

DTYPES = st.sampled_from(todays_dtypes(BINS))
FORMATS = {torch.float32: (24, 127), torch.bfloat16: (8, 127), torch.float16: (11, 15)}
"""Bits of the significand, and the bias of the exponent."""
WIDTHS = {torch.float32: 16, torch.bfloat16: 32, torch.float16: 16}
"""Exponents of a bin."""


def sum_of(terms: list[float], dtype: torch.dtype) -> float:
    """The sum by IEEE additions of which only the last one rounds."""
    if not all(map(math.isfinite, terms)):
        return sum(term for term in terms if not math.isfinite(term))
    total = sum(map(Fraction, terms))
    if total == 0 and all(math.copysign(1, term) < 0 for term in terms):
        return -0.0
    return nearest(Fraction(total), dtype)


def sums(out: Tensor, index: Tensor, addends: Tensor) -> Tensor:
    """The sums of all destinations."""
    terms: list[list[float]] = [[] for _ in range(out.numel())]
    for position, value in zip(index.tolist(), addends.tolist()):
        terms[position].append(value)
    values = [sum_of([*some, self], out.dtype) for some, self in zip(terms, out.tolist())]
    return torch.tensor(values, dtype=torch.float64).to(out.dtype)


def added(
    out: Tensor, index: Tensor, source: Tensor, way: Way | None = Way.BINS, **how: Any
) -> Tensor:
    """``out`` with the elements added to it."""
    result = shifted(out.clone()) if out.storage_offset() else out.clone()
    shape = Rows(1, source.numel(), 1, out.numel(), bool((index < 0).any()))
    add_rows(result, index, source, shape, way=way, **how)
    return result


@st.composite
def hostile(draw: st.DrawFn, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Initial values, positions and addends: of few or all exponents, which cancel, special."""
    maker = Maker(torch.float64, seed=draw(SEEDS))
    n, size = draw(st.sampled_from([1, 40, 300, 1030])), draw(st.sampled_from([1, 2, 9, 33]))
    spread = draw(st.sampled_from([0, 3, 15, 40, 140]))
    index = maker.integers(0, draw(st.sampled_from([1, size])), n)
    values = maker.normal(n + size) * 2.0 ** maker.integers(-spread, spread + 1, n + size)
    values = values.to(dtype).clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    cancelled = n // 2 - n // draw(st.sampled_from([2, 3, 32]))
    values[:cancelled] = -values[n // 2 : n // 2 + cancelled]
    index[:cancelled] = index[n // 2 : n // 2 + cancelled]
    special = st.sampled_from([-0.0, 0.0, math.inf, -math.inf, math.nan, 1e-45, -3.4e38, 65504.0])
    for value in draw(st.lists(special, max_size=3)):
        values[draw(st.integers(0, n + size - 1))] = value
    if draw(st.integers(0, 4)) == 0:
        values[draw(st.sampled_from([slice(0, n), slice(n, None), slice(None)]))] = -0.0
    place = draw(st.sampled_from([Tensor.contiguous, shifted]))
    return place(values[n:].clone()), place(index), place(values[:n].clone())


@given(data=st.data(), dtype=DTYPES, alpha=st.sampled_from([1, 1, -1, 0.3]), seed=SEEDS)
def test_sums_are_rounded_once(
    data: st.DataObject, dtype: torch.dtype, alpha: float, seed: int
) -> None:
    """Each sum is the nearest number to the exact one, whatever the order and the others are.

    Infinities, NaN, signed zeros and denormals come out as of IEEE additions.
    """
    out, index, source = data.draw(hostile(dtype))
    got = in_schedules(lambda: added(out, index, source, alpha=alpha), seed)
    want = sums(out, index, source if alpha == 1 else source * alpha)
    assert torch.equal(got.isnan(), want.isnan())
    assert same_bits(got.masked_fill(got.isnan(), 0), want.masked_fill(want.isnan(), 0))
    # A destination without addends keeps its bits, those of a NaN too.
    idle = torch.ones(out.numel(), dtype=torch.bool)
    idle[index] = False
    assert same_bits(got[idle], out[idle])


@pytest.mark.parametrize("dtype", todays_dtypes(BINS), ids=str)
def test_all_exponents_at_once(dtype: torch.dtype) -> None:
    """The largest number and the smallest one meet in a destination that has all bins."""
    limit = torch.finfo(dtype)
    least = limit.smallest_normal * limit.eps
    source = torch.tensor([limit.max, least, -limit.max, limit.max, least], dtype=dtype)
    index, out = torch.tensor([0, 0, 0, 1, 1]), torch.zeros(3, dtype=dtype)
    with host.check_races():
        got = added(out, index, source)
    assert got.tolist() == [least, limit.max, 0]
    assert added(got, torch.tensor([1]), source[3:4]).tolist() == [least, math.inf, 0]


@pytest.mark.parametrize("dtype", todays_dtypes(BINS), ids=str)
def test_no_bin_overflows(dtype: torch.dtype) -> None:
    """Bins that hold the most addends there may be, all as large as possible, and all carries."""
    precision, width = FORMATS[dtype][0], WIDTHS[dtype]
    count, bins = BINS[dtype], 2 * FORMATS[dtype][1]
    largest = (2**precision - 1) << (width - 1)
    most = MOST_ADDENDS + 1
    assert most * largest < 2**63
    cases = [[most, *[0] * (count - 1)], [most - 1, *[0] * (count - 2), 1]]
    cases += [
        [most // count] * count,
        [0] * (count - 1) + [most],
        [1, *[0] * (count - 2), 1 - most],
    ]
    cases = [[sign * number for number in case] for case in cases for sign in (1, -1)]
    memory = torch.tensor([[0] * len(cases), *zip(*cases)]) * largest
    extents, out = torch.tensor([bins, 1, 0], dtype=torch.int32), torch.ones(len(cases)).to(dtype)
    launch(
        SOURCE, f"bins_finish<{ctype(dtype)}>", len(cases),
        extents=extents, bins=memory.flatten(), out=out, size=len(cases), parts=0,
    )  # fmt: skip
    last = -FORMATS[dtype][1] - precision + 1 + bins + 1
    units = [Fraction(2) ** (last - (b + 1) * width) for b in range(count)]
    exact = [sum(n * largest * unit for n, unit in zip(case, units)) for case in cases]
    assert out.tolist() == [nearest(Fraction(each), dtype) for each in exact]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", todays_dtypes(BINS), ids=str)
def test_the_least_addend_decides_between_two_neighbours(dtype: torch.dtype, sign: int) -> None:
    """However far it lies below two others whose sum is in the middle."""
    limit = torch.finfo(dtype)
    least = limit.smallest_normal * limit.eps
    source = torch.tensor([1, limit.eps / 2, least, 1, limit.eps / 2, -least, 1, limit.eps / 2, 1])
    index = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 3])
    got = added(torch.zeros(4, dtype=dtype), index, source.to(dtype) * sign)
    assert got.tolist() == [sign * (1 + limit.eps), sign, sign, sign]


def test_the_largest_addend_may_be_anywhere() -> None:
    """Each block looks at what all blocks have found, more of them than it has threads."""
    n = 258 * exponent_bins.THREADS
    source, index = torch.ones(n), torch.zeros(n, dtype=torch.int64)
    source[-2] = 2.0**40
    with patch.object(exponent_bins, "READ", 1):
        assert (
            added(torch.zeros(1), index, source).tolist()
            == sums(torch.zeros(1), index, source).tolist()
        )


def test_zeros() -> None:
    """-0.0 is a sum where all terms are; terms that cancel, the destination's too, give 0.0."""
    terms: list[list[float]] = [[], [-0.0], [0.0], [1, -1], [-0.0, 0.0], [-0.0], [-1]]
    out = torch.tensor([-0.0, -0.0, -0.0, -0.0, -0.0, 0.0, 1])
    index = torch.tensor([i for i, some in enumerate(terms) for _ in some])
    got = added(out, index, torch.tensor([term for some in terms for term in some]))
    assert not got.any()
    assert got.signbit().tolist() == [True, True, False, False, False, False, False]


def test_a_turn_of_each_thread() -> None:
    """Threads that take several turns, and warps of which some have none, add all, once each."""
    maker = Maker(torch.float32, seed=3)
    out, index, source = maker.normal(600), maker.integers(-600, 600, 3000), maker.normal(3000)
    # Infinities meet in what a destination notes.
    index[::50], source[::50] = 7, math.inf
    want = sums(out, index % 600, source)
    with patch.multiple(exponent_bins, MOST_BLOCKS=2), host.check_races():
        assert same_bits(added(out, index, source), want)


def test_the_launches_do_not_depend_on_the_addends() -> None:
    """A plan that was written down for addends of like size serves those of all exponents."""
    maker = Maker(torch.float32, seed=8)
    index = maker.integers(0, 9, 200)
    with DeterministicMode(simulate="cuda"):
        for spread in (0, 0, 0, 120, 20, 0):
            exponents = maker.integers(-spread, spread + 1, 209)
            values = maker.normal(209) * 2.0**exponents
            out, source = values[200:], values[:200]
            assert same_bits(out.scatter_add(0, index, source), sums(out, index, source))


@pytest.mark.parametrize("position", [-10, 9])
def test_an_index_out_of_range_traps(position: int) -> None:
    """No element is added elsewhere; the next call adds what it has to."""
    index = torch.tensor([3, position, -1])
    with pytest.raises(host.DeviceAssert, match="position"):
        added(torch.zeros(9), index, torch.ones(3))
    assert added(torch.zeros(9), torch.tensor([3, -1, -1]), torch.ones(3)).tolist()[3:] == [
        1, 0, 0, 0, 0, 2,
    ]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", todays_dtypes(BINS), ids=str)
def test_a_million_to_one_destination(dtype: torch.dtype) -> None:
    """They add up to the nearest number, in another order of threads too."""
    maker = Maker(torch.float64, seed=1)
    values = (maker.normal(10**6) * 2.0 ** maker.integers(-9, 5, 10**6)).to(dtype)
    index, out = torch.zeros(10**6, dtype=torch.int64), torch.tensor([1.0], dtype=dtype)
    want = sums(out, index, values)
    assert same_bits(in_schedules(lambda: added(out, index, values, None), 5), want)
