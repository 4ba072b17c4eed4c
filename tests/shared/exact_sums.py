"""Sums by destination, exactly, and a substitute's largest distance from them."""

import math
from collections.abc import Iterator
from fractions import Fraction

import torch
from hypothesis import strategies as st
from torch import Tensor

from detmode.table.conditions import COMPLEX, FLOATING
from tests.shared.selection import todays_dtypes
from tests.shared.strategies import same_bits

DTYPES = st.sampled_from(todays_dtypes(FLOATING + COMPLEX))


def nearest(exact: Fraction, dtype: torch.dtype) -> float:
    """The value of `dtype` nearest to `exact`, ties to even, found without floating-point sums."""
    precision, smallest, largest = {
        torch.float16: (11, -14, 15),
        torch.bfloat16: (8, -126, 127),
        torch.float32: (24, -126, 127),
        torch.float64: (53, -1022, 1023),
    }[dtype]
    if exact == 0:
        return 0.0
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, smallest) - precision + 1)
    rounded = round(magnitude / unit) * unit
    value = math.inf if rounded >= Fraction(2) ** (largest + 1) else float(rounded)
    return value if exact > 0 else -value


def by_destination(
    got: Tensor, self: Tensor, destinations: Tensor, source: Tensor
) -> Iterator[tuple[float, float, list[float]]]:
    """Each destination's result, its value before and what came there; others keep their bits."""
    met: dict[int, list[float]] = {}
    for destination, value in zip(destinations.flatten().tolist(), source.flatten().tolist()):
        met.setdefault(destination, []).append(value)
    flat_got, flat_self = got.reshape(-1), self.reshape(-1)
    untouched = torch.ones(flat_self.numel(), dtype=torch.bool)
    untouched[list(met)] = False
    assert same_bits(flat_got[untouched], flat_self[untouched])
    results, before = flat_got.tolist(), flat_self.tolist()
    for destination, terms in met.items():
        yield results[destination], before[destination], terms


def assert_exact(
    got: Tensor,
    self: Tensor,
    destinations: Tensor,
    addends: Tensor,
    *,
    include_self: bool = True,
    mean: bool = False,
) -> None:
    """``got`` is ``self`` with ``addends`` added, rounded once (a mean: once more).

    Args:
        got: the substitute's result.
        self: the values there before.
        destinations: positions in ``self``, of the shape of ``addends``.
        addends: the values added, in the dtype of ``self``.
        include_self: whether what was there counts.
        mean: whether the sums are divided by the numbers of their addends.
    """
    assert got.dtype == self.dtype
    assert got.shape == self.shape
    if got.is_complex():
        got, self, addends = (torch.view_as_real(x.resolve_conj()) for x in (got, self, addends))
        destinations = torch.stack((2 * destinations, 2 * destinations + 1), -1)
    for result, before, terms in by_destination(got, self, destinations, addends):
        terms = [*terms, before] if include_self else terms
        _assert_sum(result, terms, got.dtype, include_self, mean)


def _assert_sum(
    result: float, terms: list[float], dtype: torch.dtype, include_self: bool, mean: bool
) -> None:
    if not all(map(math.isfinite, terms)):
        # Inf and NaN add up to the same in any order.
        expected = sum(term for term in terms if not math.isfinite(term))
        assert result == expected or (math.isnan(result) and math.isnan(expected))
        return
    n, limit = len(terms), torch.finfo(dtype)
    exact = math.fsum(terms) / (n if mean else 1)
    magnitude = math.fsum(map(abs, terms))
    headroom = (n + 1).bit_length()
    if dtype is torch.float64:
        lost = n * 2.0 ** (2 * headroom - 120) + 4 * n * n * 2.0**-106
        rounding = limit.eps if mean else limit.eps / 2 * 1.001
        rounding += limit.eps if mean else 0  # the reference divides with a rounding of its own
    else:
        lost = n * 2.0 ** (headroom - 60) + 2 * n * 2.0**-53
        # A 16-bit result may come by way of float, or of double and float.
        rounding = limit.eps / 2 * 1.001
        rounding += torch.finfo(torch.float32).eps * 1.01 if mean or limit.bits == 16 else 0
    bound = rounding * abs(exact) + lost * magnitude * 2 + limit.smallest_normal * limit.eps
    if abs(exact) + bound >= limit.max:
        assert math.isinf(result) or abs(result - exact) <= bound
    elif abs(result - exact) > bound:
        # The reference is rounded itself, which decides where the sum lies near a tie.
        true = sum(map(Fraction, terms)) / (n if mean else 1)
        assert abs(Fraction(result) - true) <= bound, (result, float(true), bound, n)
    if result == 0 and all(term == 0 for term in terms):
        negative = include_self and all(math.copysign(1, term) < 0 for term in terms)
        assert math.copysign(1, result) == (-1 if negative else 1)
