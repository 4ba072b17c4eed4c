"""The reproducible accumulator: the same bits in any order, and the sum rounded once."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from detmode.cuda import headroom, launch
from tests.shared.cuda_sources import COMPLEX, FLOATING, PRIMITIVES, accumulate, pattern
from tests.shared.exact_sums import nearest
from tests.shared.selection import PROFILE


def same(a: float, b: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b and math.copysign(1, a) == math.copysign(1, b)


def total(values: torch.Tensor, bits: int | None = None) -> torch.Tensor:
    index = torch.zeros(values.numel(), dtype=torch.int64)
    count = values.numel()
    return accumulate(
        torch.zeros(1, dtype=values.dtype), index, values, headroom(count) if bits is None else bits
    )


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_sum_is_rounded_once(dtype: torch.dtype, spread: float) -> None:
    """Sums of addends within 2^18 of one another are the exact sums, rounded to nearest even."""
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(2000, dtype=torch.float64, generator=generator)
    scale = spread * torch.rand(2000, dtype=torch.float64, generator=generator)
    source = (values * torch.exp2(scale) + values.sign() * 0.01).to(dtype)
    index = torch.randint(0, 25, (2000,), generator=generator)
    result = accumulate(torch.zeros(25, dtype=dtype), index, source, headroom(2000))
    for d in range(25):
        exact = sum((Fraction(v) for v in source[index == d].double().tolist()), Fraction(0))
        assert same(result[d].item(), nearest(exact, dtype))


@pytest.mark.parametrize(
    ("dtype", "words", "bits"), [(torch.float32, 1, 62), (torch.float64, 2, 125)], ids=str
)
@settings(max_examples=5 * PROFILE.examples, database=None)
@given(data=st.data())
def test_error_bound(dtype: torch.dtype, words: int, bits: int, data: st.DataObject) -> None:
    """An addend loses at most 2^(headroom - 62) of the largest in float32, 2^(2 headroom - 125) in
    float64; then one rounding.
    """
    finite = st.floats(width=8 * dtype.itemsize, allow_nan=False, allow_infinity=False)
    source = torch.tensor(data.draw(st.lists(finite, min_size=1, max_size=12)), dtype=dtype)
    room = data.draw(st.integers(4, 36))
    values = [Fraction(value) for value in source.tolist()]
    slack = len(values) * max(map(abs, values)) * Fraction(2) ** (words * room - bits)
    low, high = (nearest(sum(values) + sign * slack, dtype) for sign in (-1, 1))
    assert low <= total(source, room).item() <= high


@pytest.mark.parametrize("exponent", [0, 100, -60])
@pytest.mark.parametrize(
    ("part", "kept"),
    [(0.25, 0), (0.5, 0), (0.75, 1), (1.5, 2), (2.5, 2), (-0.5, 0), (-0.75, -1), (-1.5, -2)],
)
def test_an_addend_is_rounded_to_even(part: float, kept: int, exponent: int) -> None:
    """To a multiple of 2^(headroom - 62) of the largest, which shows where larger ones cancel."""
    room, largest = 4, 2.0**exponent
    unit = largest * 2.0 ** (room - 62)
    source = torch.tensor([largest, part * unit, -largest])
    assert total(source, room).item() == kept * unit


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_denormals_and_overflow(dtype: torch.dtype) -> None:
    """Denormals add exactly, sums cross into the normals, and too large a sum is infinite."""
    limits = torch.finfo(dtype)
    tiny = limits.smallest_normal * limits.eps
    for count in (1, 3, 7):
        assert total(torch.full((count,), tiny, dtype=dtype)).item() == count * tiny
    halves = torch.full((2,), limits.smallest_normal / 2, dtype=dtype)
    assert total(halves).item() == limits.smallest_normal
    mixed = torch.tensor([limits.smallest_normal, -tiny], dtype=dtype)
    assert total(mixed).item() == limits.smallest_normal - tiny
    top = torch.full((2,), limits.max, dtype=dtype)
    assert total(top).item() == math.inf
    assert total(-top).item() == -math.inf
    assert total(torch.cat([top, -top[:1]])).item() == limits.max


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_ties_go_to_even(dtype: torch.dtype) -> None:
    """A sum halfway between two values takes the even one, and anything beside it decides."""
    half_ulp = torch.finfo(dtype).eps / 2
    for values, expected in [
        ([1.0, half_ulp], 1.0),
        ([1.0, half_ulp * 2, half_ulp], 1.0 + 4 * half_ulp),
        ([1.0, half_ulp, half_ulp / 64], 1.0 + 2 * half_ulp),
        ([-1.0, -half_ulp, half_ulp / 64], -1.0),
    ]:
        assert total(torch.tensor(values, dtype=dtype)).item() == expected


INF, NAN = math.inf, math.nan
SPECIAL_SUMS = [
    ([NAN, 1.0], NAN), ([INF, 1.0, INF], INF), ([-INF, 1.0], -INF), ([INF, -INF], NAN),
    ([INF, NAN], NAN), ([-0.0, -0.0], -0.0), ([-0.0, 0.0], 0.0), ([0.0], 0.0), ([1.0, -1.0], 0.0),
    ([-0.0, 1.0, -1.0], 0.0), ([-1.0, -0.0], -1.0),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_special_values(dtype: torch.dtype) -> None:
    """NaN, infinities and signed zeros come out as of IEEE additions, in either order.

    A destination without addends keeps its bits, those of a NaN too.
    """
    index = torch.tensor([i for i, (terms, _) in enumerate(SPECIAL_SUMS) for _ in terms])
    source = torch.tensor([x for terms, _ in SPECIAL_SUMS for x in terms], dtype=dtype)
    before = torch.full((len(SPECIAL_SUMS) + 1,), NAN, dtype=dtype)
    before.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])[-1] += 1
    for numbers, addends in ((index, source), (index.flip(0), source.flip(0))):
        result = accumulate(before, numbers, addends, headroom(3))
        assert all(same(x, y) for x, (_, y) in zip(result.tolist(), SPECIAL_SUMS))
        assert pattern(result[-1:]) == pattern(before[-1:])


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_components_are_independent(dtype: torch.dtype) -> None:
    """A special value in one component leaves the other's sum alone."""
    values = torch.tensor([complex(math.inf, 1.0), complex(2.0, 1e-30)], dtype=dtype)
    result = total(values).item()
    assert result.real == math.inf
    assert result.imag == 1.0


def test_full_headroom_does_not_overflow() -> None:
    """As many equal addends as the headroom admits add exactly: the integer never wraps."""
    for dtype in (torch.float32, torch.float64):
        limits = torch.finfo(dtype)
        value = (2.0 - limits.eps) * 2.0**10
        source = torch.full((1023,), value, dtype=dtype)
        expected = nearest(Fraction(value) * 1023, dtype)
        assert total(source, 10).item() == expected
        assert total(-source, 10).item() == -expected


def test_headroom() -> None:
    """headroom(n) is ceil(log2(n + 1)), and refuses what the accumulator cannot hold."""
    assert [headroom(n) for n in (0, 1, 2, 3, 4, 1023, 1024)] == [0, 1, 2, 2, 3, 10, 11]
    with pytest.raises(ValueError, match="must not be negative"):
        headroom(-1)
    with pytest.raises(ValueError, match=r"below 2\*\*36"):
        headroom(2**36)


@settings(max_examples=PROFILE.examples)
@given(seed=st.integers(0, 2**32), low=st.integers(-150, 0))
def test_both_ways_to_scale_have_the_same_bits(seed: int, low: int) -> None:
    """A product in double and a shift of integers, between which a GPU's speed decides."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(-(2**31), 2**31, (4000,), generator=generator)
    # Halves of the last place, too, which are rounded to even.
    words[::3] &= ~0 << 18
    addends = words.to(torch.int32).view(torch.float32)
    addends = addends[addends.isfinite()]
    exponents = addends.frexp().exponent
    # The largest integers have 62 bits, and others none.
    places = torch.randint(low, 62, (len(addends),), generator=generator)
    powers = (places - exponents).clamp(-1000, 1000).long()
    in_double, by_shift = (torch.empty(len(addends), dtype=torch.int64) for _ in range(2))
    launch(
        *(PRIMITIVES, "scaled_two_ways", len(addends)),
        addends=addends, powers=powers, in_double=in_double, by_shift=by_shift, n=len(addends),
    )  # fmt: skip
    assert torch.equal(in_double, by_shift)
    assert in_double.count_nonzero()
