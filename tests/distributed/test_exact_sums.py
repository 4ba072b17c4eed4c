"""Sums as integers: any order and grouping, any partial order of sizes, and exact norms."""

import copy
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode.distributed.exact_sums import MOST_ADDENDS, ExactSum, exact_norm

SUMS = pytest.mark.parametrize("dtype", MOST_ADDENDS, ids=str)
PIECES = {torch.int64: 16, torch.int32: 8}
"""The bits of a piece."""


def total(groups: list[list[Tensor]], dtype: torch.dtype, held: bool) -> Tensor:
    """The sum of groups, as of ranks, whose last addends are cut into pieces or are not."""
    sums = []
    for group in groups:
        sums.append((ExactSum(dtype), group[-1] if held else None))
        for addend in group[: len(group) - held]:
            sums[-1][0].add(addend)
    return combined(sums)


def combined(sums: list[tuple[ExactSum, Tensor | None]]) -> Tensor:
    """The sum of sums, each with an addend that it has not cut into pieces, or with none."""
    codes = torch.stack([each.codes(last) for each, last in sums]).amax(0)
    totals = torch.stack([each.totals(codes, last) for each, last in sums])
    totals = totals.sum(0, dtype=totals.dtype)
    return sums[0][0].mean(totals, codes, 1, torch.float64).view(-1)


BITS = st.integers(0, 2**32 - 1)
"""Of a float32: all magnitudes, subnormal numbers, infinities and NaN among them."""


@SUMS
@given(data=st.data())
def test_any_order_and_grouping(dtype: torch.dtype, data: st.DataObject) -> None:
    """The same addends have the same sum, and an error within the bound of the format."""
    bits = data.draw(st.lists(BITS, min_size=1, max_size=8))
    exponent = data.draw(st.integers(0, 254))
    # Half of them are near one another, where the pieces overlap.
    bits = [
        each if number % 2 else (each & 0x807FFFFF) | (exponent << 23)
        for number, each in enumerate(bits)
    ]
    numbers = torch.tensor(bits).to(torch.int32).view(torch.float32)
    addends = [torch.full((ExactSum(dtype).block,), number.item()) for number in numbers]
    expected = total([addends], dtype, held=True)
    order = data.draw(st.permutations(addends))
    cuts = data.draw(st.integers(1, len(order)))
    groups = [order[start::cuts] for start in range(cuts)]
    sums = total(groups, dtype, held=data.draw(st.booleans()))
    assert torch.equal(sums.view(torch.int64), expected.view(torch.int64))
    if numbers.isfinite().all():
        exact = sum(map(Fraction, numbers.tolist()))
        largest = max(Fraction(numbers.abs().max().item()), Fraction(2) ** -127)
        dropped = len(bits) * Fraction(2) ** (-2 * PIECES[dtype]) * largest
        error = abs(Fraction(sums[0].item()) - exact)
        assert error <= dropped + abs(exact) * Fraction(2) ** -53


@SUMS
def test_most_addends(dtype: torch.dtype) -> None:
    """The largest numbers fit as often as the format allows, in the words and in the total."""
    largest = torch.finfo(torch.float32).max
    for sign in (1, -1):
        half = ExactSum(dtype)
        addend = torch.full((half.block,), sign * largest)
        half.add(addend)
        words = [word.clone() for word in half._words]
        half.add(addend)
        # So each addition of an equal number adds the same to each word: thousands take seconds.
        for word, once in zip(half._words, words):
            assert torch.equal(word, 2 * once)
            word.add_(once * (MOST_ADDENDS[dtype] // 2 - 2))
        sums = combined([(half, None), (copy.deepcopy(half), None)])
        assert sums[0].item() == pytest.approx(sign * MOST_ADDENDS[dtype] * largest, rel=2.0**-22)


INF, NAN = math.inf, math.nan


@SUMS
@pytest.mark.parametrize(
    ("addends", "expected"),
    [([INF, -3e38], INF), ([3e38, -INF], -INF), ([INF, 1.0, -INF], NAN), ([INF, NAN], NAN)],
)
def test_not_finite(dtype: torch.dtype, addends: list[float], expected: float) -> None:
    """An infinity outweighs the largest numbers; those of both signs make a NaN."""
    blocks = [torch.full((ExactSum(dtype).block,), addend) for addend in addends]
    found = total([blocks], dtype, held=False)
    torch.testing.assert_close(found, torch.full_like(found, expected), equal_nan=True)


def test_float16_is_exact() -> None:
    """In int64, sums of float16 lose nothing, from the smallest to the largest number."""
    values = torch.tensor([2.0**-24, 65504.0, -65504.0, 2.0**-24], dtype=torch.float16)
    addends = [value.reshape(1) for value in values]
    assert total([addends], torch.int64, held=False).item() == 2.0**-23


@given(numbers=st.lists(BITS, min_size=1, max_size=50), parts=st.integers(1, 5), data=st.data())
def test_norm(numbers: list[int], parts: int, data: st.DataObject) -> None:
    """A norm is right to 2**-47, and the same for every order and cut of the elements."""
    vector = torch.tensor(numbers).to(torch.int32).view(torch.float32)
    norm = exact_norm([vector], vector.device, None)
    order = torch.tensor(data.draw(st.permutations(range(len(vector)))))
    again = exact_norm(list(vector[order].chunk(parts)), vector.device, None)
    assert torch.equal(norm.view(torch.int64), again.view(torch.int64))
    if vector.isfinite().all():
        squares = sum(Fraction(each) ** 2 for each in vector.tolist())
        scale = Fraction(2) ** 400  # so that the square root is one of a normal number
        exact = Fraction(math.isqrt(int(squares * scale**2))) / scale
        assert abs(Fraction(norm.item()) - exact) <= exact * Fraction(2) ** -47
    else:
        assert str(norm.item()) == ("nan" if vector.isnan().any() else "inf")
