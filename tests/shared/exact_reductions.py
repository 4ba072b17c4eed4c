"""Products and extrema by destination, exactly, and a substitute's largest distance from them."""

import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from hypothesis import strategies as st
from torch import Tensor

from detmode.table.conditions import FLOATING, INTEGRAL
from detmode.table.samples import Maker
from tests.shared.exact_sums import by_destination
from tests.shared.selection import todays_dtypes
from tests.shared.strategies import ANY_LAYOUT, SEEDS, tensors

DTYPES = st.sampled_from(todays_dtypes(FLOATING + INTEGRAL))


@st.composite
def values(draw: st.DrawFn, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor in some layout: floats of wide range, some special; integers from all the range."""
    if dtype.is_floating_point:
        return draw(tensors(shape, dtype))
    limits = torch.iinfo(dtype)
    low, high = draw(st.sampled_from([(-3, 4), (limits.min, limits.max)]))
    tensor = Maker(dtype, seed=draw(SEEDS)).integers(max(low, limits.min), high, *shape)
    return draw(ANY_LAYOUT)(tensor.to(dtype))


def assert_reduced(
    got: Tensor,
    self: Tensor,
    destinations: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> None:
    """``got`` is ``self`` with ``source`` multiplied in, or with its extrema, to a rounding.

    Args:
        got: the substitute's result.
        self: the values there before.
        destinations: positions in ``self``, of the shape of ``source``.
        source: the values brought there, in the dtype of ``self``.
        reduce: "prod", "amax" or "amin".
        include_self: whether what was there counts.
    """
    assert got.dtype == self.dtype
    assert got.shape == self.shape
    for result, before, terms in by_destination(got, self, destinations, source):
        terms = [before, *terms] if include_self else terms
        if reduce == "prod":
            _assert_product(result, terms, got.dtype)
        else:
            _assert_extremum(result, terms, reduce == "amax")


def _assert_product(result: float, terms: list[float], dtype: torch.dtype) -> None:
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        wrapped = (math.prod(terms) - limits.min) % 2**limits.bits + limits.min
        assert result == wrapped
        return
    if not all(map(math.isfinite, terms)) or 0 in terms:
        # Only the kinds of the factors matter: a nonzero finite one keeps its sign.
        kinds = (math.copysign(1, x) if x and math.isfinite(x) else x for x in terms)
        _assert_same(result, math.prod(kinds))
        return
    exact = math.prod(map(Fraction, terms), start=Fraction(1))
    limit = torch.finfo(dtype)
    # A 16-bit result comes by way of float; a running product of 16-bit or float factors is double.
    lost = 0.0 if dtype is torch.float64 else len(terms) * 2.0**-52
    lost += torch.finfo(torch.float32).eps if limit.bits == 16 else 0.0
    bound = Fraction(limit.eps / 2 * 1.001 + lost) * abs(exact)
    bound += Fraction(limit.smallest_normal * limit.eps) * Fraction(6, 10)
    if math.isinf(result):
        assert abs(exact) + bound >= Fraction(limit.max)
    else:
        assert abs(Fraction(result) - exact) <= bound, (result, float(exact), len(terms))
    # The exact product may be beyond any float.
    assert (math.copysign(1, result) < 0) == (exact < 0)


def _assert_extremum(result: float, terms: list[float], largest: bool) -> None:
    if any(x != x for x in terms):
        assert result != result
        return
    # -0.0 is below 0.0.
    chosen = (max if largest else min)(terms, key=lambda x: (x, math.copysign(1, x)))
    _assert_same(result, chosen)


def _assert_same(result: float, expected: float) -> None:
    assert result == expected or (math.isnan(result) and math.isnan(expected))
    if expected == 0:
        assert math.copysign(1, result) == math.copysign(1, expected)
