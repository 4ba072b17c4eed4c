"""compensated_sum: thousands of additions with the error of one."""

from __future__ import annotations

import functools
from fractions import Fraction

import pytest
import torch
from cuda_sources import PRIMITIVES

from detmode.cuda import ctype, empty, launch_blocks

DTYPES = [torch.float32, torch.float64]


def run(values: torch.Tensor, divisor: float) -> tuple[float, float, float]:
    """The sum, the sum of the shares, the divided sum."""
    total, shares = (empty((n,), values.dtype, "cpu") for n in (1, 2))
    entry = f"compensated<{ctype(values.dtype)}>"
    launch_blocks(PRIMITIVES, entry, 1, 1, values, total, shares, values.numel(), divisor)
    return total.item(), shares[0].item(), shares[1].item()


def roundings(value: float, exact: Fraction, dtype: torch.dtype) -> float:
    """The distance in units of the largest rounding error of a result of that size."""
    return float(abs(Fraction(value) - exact) / (abs(exact) * Fraction(torch.finfo(dtype).eps) / 2))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_error_is_that_of_one_rounding(dtype: torch.dtype) -> None:
    """Ten thousand times a tenth, where plain additions drift by many roundings."""
    values = torch.full((10_000,), 0.1, dtype=dtype)
    exact = sum(map(Fraction, values.tolist()), Fraction(0))
    total, shares, divided = run(values, 7.0)
    assert roundings(total, exact, dtype) <= 1.01
    assert roundings(shares, exact / 7, dtype) <= 1.01
    assert roundings(divided, exact / 7, dtype) <= 1.01
    plain = functools.reduce(torch.add, values.unbind())
    assert roundings(plain.item(), exact, dtype) > 10


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinities_and_nan_come_out_as_from_plain_additions(dtype: torch.dtype) -> None:
    """One infinity stays; two of opposite signs, or a NaN, give NaN."""
    inf, nan = float("inf"), float("nan")
    for addends, expected in ([1.0, inf, 2.0], inf), ([1.0, -inf, 2.0], -inf):
        assert run(torch.tensor(addends, dtype=dtype), 3.0) == (expected, expected, expected)
    for addends in [inf, 1.0, -inf], [1.0, nan, 2.0]:
        assert all(x != x for x in run(torch.tensor(addends, dtype=dtype), 3.0))
