"""significand.cuh: numbers taken apart, and put together again."""

import math

import pytest
import torch

from detmode.cuda import ctype, launch
from tests.shared.cuda_sources import SIGNIFICAND, mapped, pattern

DTYPES = (torch.float32, torch.float64)


def powers(values: torch.Tensor, zero: int) -> torch.Tensor:
    """``values[i] * 2**(i - zero)``."""
    return mapped(SIGNIFICAND, "powers", values, zero=zero)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_powers_of_two(dtype: torch.dtype) -> None:
    """Exact where the product is normal, rounded once where it is denormal, else 0 or infinite."""
    zero = 1200 if dtype is torch.float64 else 200
    for value in (1.0, 1.0 + 2.0**-20, -1.7, 0.0, -0.0, math.inf):
        values = torch.full((2 * zero,), value, dtype=dtype)
        exponents = torch.arange(2 * zero) - zero
        low = (values.double() * torch.exp2(exponents.clamp(-600, 600).double())).to(dtype)
        got = powers(values, zero)
        within = exponents.abs() <= 600
        assert pattern(got[within]) == pattern(low[within])
        if dtype is torch.float64:
            expected = [math.ldexp(value, e) if e < 1023 else None for e in exponents.tolist()]
            for mine, true in zip(got.tolist(), expected, strict=True):
                assert true is None or (mine, math.copysign(1, mine)) == (
                    true,
                    math.copysign(1, true),
                )
    assert powers(torch.full((2 * zero,), math.nan, dtype=dtype), zero).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts(dtype: torch.dtype) -> None:
    """The parts are those of frexp, denormals too; what has no exponent is its own significand."""
    limit = torch.finfo(dtype)
    words = torch.int32 if dtype is torch.float32 else torch.int64
    ends = torch.iinfo(words)
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(ends.min, ends.max, (4000,), dtype=words, generator=generator)
    denormal = torch.ldexp(torch.ones(30, dtype=dtype), -torch.arange(30)) * limit.smallest_normal
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, limit.max], dtype=dtype)
    values = torch.cat([values.view(dtype), denormal[denormal != 0], -denormal[:20], special])
    n = values.numel()
    significands, exponents = torch.empty_like(values), torch.empty(n, dtype=torch.int64)
    launch(
        SIGNIFICAND, f"parts<{ctype(dtype)}>", n,
        input=values, significands=significands, exponents=exponents, n=n,
    )  # fmt: skip
    has = values.isfinite() & (values != 0)
    assert pattern(significands[~has]) == pattern(values[~has])
    assert (exponents[~has] == 0).all()
    expected = [math.frexp(value) for value in values[has].tolist()]
    assert significands[has].tolist() == [2 * fraction for fraction, _ in expected]
    assert exponents[has].tolist() == [exponent - 1 for _, exponent in expected]
