"""compensated_sum: thousands of additions with the error of one."""

from fractions import Fraction

import pytest
import torch

from detmode.cuda import ctype, empty, launch, launch_blocks
from tests.shared.cuda_sources import PRIMITIVES, pattern

DTYPES = [torch.float32, torch.float64]


def run(values: torch.Tensor, divisor: float) -> tuple[float, float, float]:
    """The sum, the sum of the shares, the divided sum."""
    total, shares = (empty((n,), values.dtype, "cpu") for n in (1, 2))
    entry = f"compensated<{ctype(values.dtype)}>"
    launch_blocks(
        PRIMITIVES, entry, 1, 1,
        values=values, total=total, shares=shares, n=values.numel(), divisor=divisor,
    )  # fmt: skip
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
    plain = values.numpy().cumsum()[-1]
    assert roundings(float(plain), exact, dtype) > 10


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinities_and_nan_come_out_as_from_plain_additions(dtype: torch.dtype) -> None:
    """One infinity stays; two of opposite signs, or a NaN, give NaN."""
    inf, nan = float("inf"), float("nan")
    for addends, expected in ([1.0, inf, 2.0], inf), ([1.0, -inf, 2.0], -inf):
        assert run(torch.tensor(addends, dtype=dtype), 3.0) == (expected, expected, expected)
    for addends in [inf, 1.0, -inf], [1.0, nan, 2.0]:
        assert all(x != x for x in run(torch.tensor(addends, dtype=dtype), 3.0))


def hard_quotients(dtype: torch.dtype, divisors: torch.Tensor) -> torch.Tensor:
    """Numbers whose quotient lies next to where rounding changes."""
    digits = 24 if dtype is torch.float32 else 53
    quotients = torch.randint(2 ** (digits - 1), 2**digits, divisors.shape)
    exact = [d * (2 * q + 1) for q, d in zip(quotients.tolist(), divisors.long().tolist())]
    spread = torch.randint(-80, 40, divisors.shape).double().exp2()
    return (torch.tensor(exact, dtype=torch.float64) * 2.0**-digits * spread).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_division_by_a_reciprocal(dtype: torch.dtype) -> None:
    """The bits of a division, of sums with any `low`, wherever it says that it may be used."""
    torch.manual_seed(0)
    n = 200_000
    divisors = (2 ** (torch.rand(n, dtype=torch.float64) * 20)).round() * (
        1 - 2.0 * (torch.rand(n) < 0.1)
    )
    divisors[:22] = torch.tensor([1, -1, *(2.0**k for k in range(1, 21))])
    high = torch.where(
        torch.rand(n) < 0.5,
        hard_quotients(dtype, divisors),
        (torch.randn(n, dtype=torch.float64) * torch.randint(-149, 128, (n,)).exp2()).to(dtype),
    )
    unit = torch.finfo(dtype).eps
    low = high * unit * torch.rand(n, dtype=dtype).sub(0.5) * torch.randint(-90, 1, (n,)).exp2()
    # Sums that cancelled keep any `low`; most have none.
    any_low = (torch.randn(n, dtype=torch.float64) * torch.randint(-149, 128, (n,)).exp2()).to(
        dtype
    )
    kind = torch.rand(n)
    low = torch.where(kind < 0.2, any_low, torch.where(kind < 0.6, low, 0))
    high[kind > 0.95] = 0
    special = torch.tensor([float("inf"), float("-inf"), float("nan"), -0.0], dtype=dtype)
    high[-8:], low[-8:] = special.repeat(2), special.repeat_interleave(2)
    divided, quickly = empty((n,), dtype, "cpu"), empty((n,), dtype, "cpu")
    quick = empty((n,), torch.bool, "cpu")
    launch(
        PRIMITIVES, f"divided_sums<{ctype(dtype)}>", n,
        high=high, low=low, divisors=divisors.to(dtype), reciprocals=1 / divisors,
        divided=divided, quickly=quickly, quick=quick, n=n,
    )  # fmt: skip
    assert pattern(divided[quick]) == pattern(quickly[quick])
    usual = (high.abs() > 1e-17) & (high.abs() < 1e27) & (low.abs() < 1e27)
    assert usual.any()
    assert quick[usual].all()
    assert quick[(high == 0) & (low == 0)].all()
    assert not quick[~high.isfinite() | ~low.isfinite()].any()
