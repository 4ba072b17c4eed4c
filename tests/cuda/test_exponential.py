"""exponential.cuh: errors, ends, and that it asks nothing of a GPU's own functions."""

import math
from collections.abc import Callable
from decimal import Decimal, getcontext
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode.cuda import ctype, launch
from tests.shared import needs
from tests.shared.cuda_sources import EXPONENTIAL, mapped

DTYPES = (torch.float32, torch.float64)
getcontext().prec = 60


pytestmark = needs.compiler
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
apply = partial(mapped, EXPONENTIAL)


def exact(value: float) -> Decimal:
    """exp(value) to 60 digits."""
    return Decimal(value).exp()


def error_in_places(got: float, true: Decimal, dtype: torch.dtype) -> float:
    """The error in units in the last place of the true value, denormals included."""
    info = torch.finfo(dtype)
    place = max(
        Decimal(2) ** (math.frexp(float(true))[1] - 1) * Decimal(info.eps),
        Decimal(info.smallest_normal) * Decimal(info.eps),
    )
    return float(abs(Decimal(got) - true) / place)


@by_dtype
def test_within_one_place(dtype: torch.dtype) -> None:
    """Over the whole range, around each power of two's border and near zero, one place at most."""
    low, high = (-104.0, 88.8) if dtype is torch.float32 else (-746.0, 709.8)
    generator = torch.Generator().manual_seed(0)
    values = torch.cat(
        [
            torch.linspace(low, high, 1500, dtype=torch.float64),
            (torch.arange(-150, 128) + 0.5).double() * math.log(2),
            torch.randn(500, dtype=torch.float64, generator=generator)
            * torch.tensor(10.0).pow(torch.arange(500) % 12 - 9),
        ]
    )
    values = values.to(dtype)
    got = apply("exponentials", values)
    limit = Decimal(torch.finfo(dtype).max)
    worst = max(
        error_in_places(mine, exact(value), dtype)
        for value, mine in zip(values.tolist(), got.tolist())
        if exact(value) <= limit
    )
    assert worst <= 1.0


@by_dtype
def test_ends(dtype: torch.dtype) -> None:
    """Infinities, NaN, zeros and what is beyond the range come out as from exp."""
    info = torch.finfo(dtype)
    values = [math.inf, -math.inf, math.nan, 0.0, -0.0, info.max, info.min, info.tiny, 800.0]
    values += [-800.0, 1e5, -1e5]
    tensor = torch.tensor(values, dtype=dtype)
    got, expected = apply("exponentials", tensor), torch.exp(tensor)
    assert torch.equal(got.nan_to_num(-1.0), expected.nan_to_num(-1.0))
    assert not got.signbit()[[0, 1, 3, 4]].any()


def scaled(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The products, and the sums, of rows of four numbers."""
    n, dtype = len(rows), rows.dtype
    products, sums = torch.empty(n, dtype=dtype), torch.empty(n, dtype=dtype)
    launch(
        EXPONENTIAL, f"scaled_numbers<{ctype(dtype)}>", n,
        input=rows, products=products, sums=sums, n=n,
    )  # fmt: skip
    return products, sums


ends = st.one_of(st.floats(-3000, 3000), st.floats(-5, 5), st.floats(-1e6, 1e6))


@by_dtype
@given(a=ends, b=ends, c=ends, d=st.floats(-9, 9))
def test_scaled_numbers(dtype: torch.dtype, a: float, b: float, c: float, d: float) -> None:
    """Products and sums of numbers far out of range are those of 60 digits, to a few places."""
    # The fourth number brings the sum back into the range.
    back = torch.tensor(-max(a, b, c) + d, dtype=dtype).item()
    # A product is to come out within the range, too.
    low = torch.tensor([a], dtype=dtype).abs().item() * torch.finfo(dtype).eps / 4
    rows = torch.tensor([[a, b, c, back], [a, low, -a + d, -low]], dtype=dtype)
    products, sums = scaled(rows)
    w, x, y, z = rows[0].tolist()
    true = (exact(w) + exact(x) + exact(y)) * exact(z)
    assert error_in_places(sums[0].item(), true, dtype) <= 8
    w, x, y, z = rows[1].tolist()
    assert (
        error_in_places(products[1].item(), exact(w) * exact(x) * exact(y) * exact(z), dtype) <= 6
    )


@by_dtype
def test_scaled_ends(dtype: torch.dtype) -> None:
    """Nothing plus nothing is nothing; infinity times nothing is NaN, as it is in logarithms."""
    inf = math.inf
    rows = torch.tensor(
        [[-inf, -inf, -inf, 5.0], [-inf, -inf, -inf, inf], [-inf, 2.0, -inf, -2.0]], dtype=dtype
    )
    _, sums = scaled(rows)
    assert sums[0].item() == 0.0
    assert sums[1].isnan()
    assert sums[2].item() == pytest.approx(1.0)


def applied_closely(name: str, values: Tensor, exact: Callable[[Tensor], Tensor]) -> Tensor:
    """The function's value, which is about one unit in the last place from the exact one."""
    got, true = apply(name, values).double(), exact(values.double())
    spacing = torch.nextafter(true.abs(), torch.tensor(math.inf, dtype=true.dtype)) - true.abs()
    worst = float(((got - true).abs() / spacing).max())
    # PyTorch's own double has an error, too.
    assert worst * 2.0**-29 < 1.2 if values.dtype is torch.float32 else worst <= 2
    return got


@by_dtype
def test_nonpositive(dtype: torch.dtype) -> None:
    """Down to the smallest normal numbers; then 0."""
    least = -87.0 if dtype is torch.float32 else -708.0
    generator = torch.Generator().manual_seed(0)
    spread = torch.rand(20000, generator=generator, dtype=torch.float64)
    near = torch.ldexp(-spread, torch.arange(20000) % 60 - 55)
    values = torch.cat([least * spread, near.clamp(min=least)]).to(dtype)
    applied_closely("exponentials_nonpositive", values, torch.exp)
    edges = torch.tensor([0.0, -0.0, least - 1, -math.inf, math.nan], dtype=dtype)
    *ends, last = apply("exponentials_nonpositive", edges).tolist()
    assert ends == [1.0, 1.0, 0.0, 0.0]
    assert math.isnan(last)


@by_dtype
def test_logarithm(dtype: torch.dtype) -> None:
    """Also close to 1, where the logarithm is small."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.rand(20000, generator=generator, dtype=torch.float64)
    wide = torch.ldexp(1 + spread, torch.arange(20000) % 240 - 120)
    near = 1 + torch.ldexp(spread - 0.5, -(torch.arange(20000) % 20))
    values = torch.cat([wide, near, torch.tensor([1.0])]).to(dtype)
    assert applied_closely("logarithms", values, torch.log)[-1] == 0.0
    assert apply("logarithms", torch.tensor([math.nan], dtype=dtype)).isnan()
