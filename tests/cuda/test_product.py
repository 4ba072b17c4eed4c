"""product.cuh: products that neither overflow nor underflow before their end."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from detmode.cuda import ctype, empty, launch
from tests.shared.cuda_sources import FLOATING, REDUCTIONS
from tests.shared.selection import PROFILE


def row_product(values: torch.Tensor, split: int) -> torch.Tensor:
    rows, columns = values.shape
    output = empty((rows,), values.dtype, "cpu")
    launch(
        REDUCTIONS, f"row_product<{ctype(values.dtype)}>", rows,
        values=values, output=output, rows=rows, columns=columns, split=split,
    )  # fmt: skip
    return output


def rounded(exact: Fraction, dtype: torch.dtype) -> float:
    """The nearest value of ``dtype`` but for a rounding to float64 on the way."""
    try:
        wide = float(exact)
    except OverflowError:
        wide = math.inf if exact > 0 else -math.inf
    return torch.tensor(wide, dtype=torch.float64).to(dtype).item()


@st.composite
def factors(draw: st.DrawFn, dtype: torch.dtype) -> list[float]:
    """Factors from all over the dtype's range, denormals too, whose product lies around 1."""
    limit = torch.finfo(dtype)
    smallest = limit.smallest_normal * limit.eps
    highest = math.frexp(limit.max)[1] - 1
    few = st.integers(math.frexp(smallest)[1] + 2, math.frexp(limit.smallest_normal)[1])
    exponents = st.one_of(few, st.integers(-highest + 1, highest))
    drawn = draw(st.lists(st.tuples(st.floats(0.5, 1), st.booleans(), exponents), max_size=30))
    values = [math.ldexp(-x if negative else x, e) for x, negative, e in drawn]
    values = [value for value in torch.tensor(values, dtype=dtype).tolist() if value != 0] or [1.0]
    balance = -sum(math.frexp(value)[1] for value in values)
    while balance:
        step = max(-highest + 1, min(highest, balance))
        values.append(math.ldexp(1.0, step))
        balance -= step
    return draw(st.permutations(values))


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@settings(max_examples=2 * PROFILE.examples, database=None)
@given(data=st.data())
def test_only_the_end_is_rounded(dtype: torch.dtype, data: st.DataObject) -> None:
    """However far the running product leaves the range, the product is right to a unit."""
    values = data.draw(factors(dtype))
    exact = math.prod(map(Fraction, values), start=Fraction(1))
    split = data.draw(st.integers(1, len(values)))
    got = row_product(torch.tensor([values], dtype=dtype), split).item()
    expected = rounded(exact, dtype)
    limit = torch.finfo(dtype)
    if math.isinf(expected) or math.isinf(got):
        # At the very end of the range a unit decides.
        assert abs(exact) >= Fraction(limit.max)
        assert math.copysign(1, got) == math.copysign(1, expected)
    else:
        spacing = max(abs(expected) * limit.eps, limit.smallest_normal * limit.eps)
        assert abs(Fraction(got) - exact) <= Fraction(spacing)
        assert got == 0 or math.copysign(1, got) == math.copysign(1, expected)


def test_pairs_of_double_keep_what_is_rounded_away() -> None:
    """Of two thousand double factors the product is as good as rounded once."""
    generator = torch.Generator().manual_seed(0)
    values = 1 + 1e-3 * torch.randn(1, 2000, dtype=torch.float64, generator=generator)
    exact = math.prod(map(Fraction, values[0].tolist()), start=Fraction(1))
    for split in (1, 64, 1000):
        got = Fraction(row_product(values, split).item())
        assert abs(got - exact) <= abs(exact) * Fraction(2) ** -53 * Fraction("1.001")


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_many_factors_below_one(dtype: torch.dtype) -> None:
    """The product of their significands, each nearly 2, is scaled before it overflows."""
    values = torch.full((1, 2000), 1 - 2.0**-8, dtype=dtype)
    expected = rounded(Fraction(255, 256) ** 2000, dtype)
    got = row_product(values, 700).item()
    assert got == pytest.approx(expected, rel=torch.finfo(dtype).eps, abs=0)


SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 2.0, -3.0)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("split", [1, 2, 3])
def test_special_values(dtype: torch.dtype, split: int) -> None:
    """Zeros, infinities and NaN multiply as in IEEE 754, with their signs; NaN has one pattern."""
    rows = torch.cartesian_prod(*[torch.tensor(SPECIAL, dtype=dtype)] * 3)
    got, expected = row_product(rows, split), rows.double().prod(1).to(dtype)
    numbers = ~expected.isnan()
    assert torch.equal(got.isnan(), ~numbers)
    assert torch.equal(got[numbers], expected[numbers])
    assert torch.equal(got[numbers].signbit(), expected[numbers].signbit())
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    assert got[~numbers].view(words).unique().numel() == 1
