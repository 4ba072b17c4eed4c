"""Scans of one row on the host runner, over lengths, strides, dtypes and values."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode import DeterministicMode
from detmode.rules.scan import launch, reference
from detmode.table.conditions import COMPLEX
from detmode.table.samples import Maker
from tests.shared import exact_sums, needs
from tests.shared.selection import todays_dtypes
from tests.shared.strategies import FLOATS, SEEDS, SINGLE_OR_DOUBLE, in_schedules, same_bits

pytestmark = needs.compiler

OPS = ("cumsum", "cumprod", "logcumsumexp")
SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0)
# Around the sizes of a thread's share, a warp's, a tile's and two tiles'.
lengths = st.one_of(
    st.integers(2, 300), st.sampled_from([511, 512, 1023, 1024, 1025, 2049, 4096, 4097, 5000])
)


@st.composite
def rows(draw: st.DrawFn, op: str, dtype: torch.dtype) -> tuple[Tensor, int]:
    """All elements along one dimension, neighbours or not, and that dimension."""
    n, step = draw(lengths), draw(st.sampled_from([1, 1, 2, 3]))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    values = Maker(dtype, seed=draw(SEEDS)).normal(n * step + 1, dtype=wide)
    if op == "cumprod":
        spread = draw(st.sampled_from([512, 64, 1]))
        values = values if spread == 1 else 1 + values / spread
    elif op == "logcumsumexp" and dtype.is_complex:
        values = torch.complex(values.real, values.imag / 64)
    row = values.to(dtype)[draw(st.integers(0, 1)) :: step][:n]
    before, behind = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    row = row.reshape([1] * before + [n] + [1] * behind) if step == 1 else row
    dim = before if step == 1 else 0
    return row, dim - draw(st.sampled_from([0, row.dim()]))


def bound(op: str, exact: Tensor, row: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest error of an element of the result."""
    limit = torch.finfo(dtype)
    unit = limit.eps / 2
    opmath = torch.finfo(torch.float64 if limit.bits == 64 else torch.float32).eps / 2
    n = row.numel()
    steps = math.log2(n) + 12
    size = exact.abs()
    if op == "cumsum":
        # float in pairs; float64 and the float of 16-bit dtypes round at each step of the tree.
        grown = row.to(exact.dtype).abs().flatten().cumsum(0).view(exact.shape)
        inner = steps * opmath * (n * 2.0**-24 if limit.bits == 32 else 1.0) * grown
    elif op == "cumprod":
        # Complex in float64; others in pairs.
        inner = n * (2.0**-50 if exact.is_complex() else 4 * opmath**2 * n) * size
    else:
        inner = 4 * steps * (2.0**-53 if exact.is_complex() else opmath) * (1 + size)
        size = size + row.to(exact.dtype).real.abs().max()
    # A hundredth more: a 16-bit result is rounded to float first.
    return 1.01 * unit * size + inner + 2 * limit.smallest_normal * limit.eps


@pytest.mark.parametrize("op", OPS)
@given(data=st.data(), dtype=exact_sums.DTYPES, seed=SEEDS)
def test_scan(op: str, data: st.DataObject, dtype: torch.dtype, seed: int) -> None:
    """Within a bound of the truth, the bits of any schedule, and those of the row up to there."""
    row, dim = data.draw(rows(op, dtype))
    run = getattr(launch, op)
    got = in_schedules(lambda: run(row, dim), seed)
    assert (got.dtype, got.shape) == (dtype, row.shape)
    assert got.is_contiguous()
    cut = data.draw(st.integers(1, row.numel()))
    assert same_bits(got.narrow(dim, 0, cut), run(row.narrow(dim, 0, cut), dim))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact = getattr(reference, op)(row.to(wide), dim)
    if op == "logcumsumexp" and not dtype.is_complex:
        exact = torch.where(exact.isinf(), torch.logcumsumexp(row.double(), dim), exact)
    error = (got.to(wide) - exact).abs()
    allowed = bound(op, exact, row, dtype)
    within = exact.abs() <= torch.finfo(dtype).max * (1 - torch.finfo(dtype).eps)
    assert bool((error <= allowed)[within].all()), (error / allowed)[within].max()
    assert not bool(got[~within].isfinite().all()) or not bool((~within).any())


@pytest.mark.parametrize("op", OPS)
@given(data=st.data(), dtype=FLOATS, seed=SEEDS)
def test_special_values(op: str, data: st.DataObject, dtype: torch.dtype, seed: int) -> None:
    """NaN, infinities and zeros anywhere come out as ATen's float64 gives them, in its order."""
    n = data.draw(lengths)
    # Powers of two: no product overflows or underflows on ATen's way.
    row = torch.ldexp(
        torch.ones(n), Maker(dtype, seed=seed).integers(0, 2, n) * (-1) ** torch.arange(n)
    )
    row = (row * 0 + 1 if op == "cumprod" else row).to(dtype)
    for value in data.draw(st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=4)):
        row[data.draw(st.integers(0, n - 1))] = value
    got, aten = getattr(launch, op)(row, 0), getattr(torch, op)(row.double(), 0)
    assert torch.equal(got.isnan(), aten.isnan())
    special = aten.isinf() | (aten == 0)
    if op != "logcumsumexp":
        assert torch.equal(got[special].double(), aten[special])
        assert torch.equal(got[special].signbit(), aten[special].signbit())
    else:
        infinite = aten.isinf()
        assert torch.equal(got[infinite].double(), aten[infinite])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", todays_dtypes(COMPLEX), ids=str)
def test_a_nan_in_either_part(op: str, dtype: torch.dtype) -> None:
    """Beside whatever other part, a NaN makes NaN of what follows, as in ATen, and of no more."""
    others = (math.nan, math.inf, -math.inf, -0.0, 1.0)
    for parts in {*itertools.product([math.nan], others), *itertools.product(others, [math.nan])}:
        for before in (complex(1, 2), complex(-math.inf, 0)):
            row = torch.tensor([before, complex(*parts), 3, 1j], dtype=dtype)
            got, aten = getattr(launch, op)(row, 0), getattr(torch, op)(row, 0)
            assert got.isnan().tolist() == aten.isnan().tolist(), row


def test_products_do_not_overflow_on_their_way() -> None:
    """Parts of the row whose own product is out of range, where that of the row is not."""
    for dtype, big in ((torch.float32, 1e30), (torch.float64, 1e300), (torch.complex128, 1e300)):
        for parts in ([0.0, big, big], [big, 1 / big, 1 / big, big], [1 / big, big, big, 1 / big]):
            row = torch.tensor(parts, dtype=dtype).repeat_interleave(300)
            if parts[0]:
                row = torch.tensor(parts, dtype=dtype).repeat(300)
            got = launch.cumprod(row, 0)
            exact = reference.cumprod(row, 0)
            within = exact.abs() < big * 10
            torch.testing.assert_close(got[within], exact[within], rtol=1e-4, atol=0.0)
            assert bool(got.isfinite()[within].all())
            assert bool((got[~within].abs() >= torch.finfo(dtype).max).all())


def test_denormal_factors() -> None:
    """A denormal factor has all of its bits in a product that is normal."""
    for dtype, small, big in (
        (torch.float32, 2.0**-149, 2.0**120),
        (torch.float64, 2.0**-1074, 2.0**1000),
        (torch.bfloat16, 2.0**-133, 2.0**120),
        (torch.complex128, 2.0**-1074, 2.0**1000),
    ):
        row = torch.tensor([5 * small, big, -7 * small, big, 3 * small], dtype=dtype)
        assert torch.equal(launch.cumprod(row, 0), reference.cumprod(row, 0))


def test_nan_has_one_pattern() -> None:
    """Whatever NaN goes in, and wherever one arises, the same one comes out."""
    for op in OPS:
        for pattern in (0x7FC00000, 0x7F800001, -1):
            row = torch.tensor([pattern, 0x3F800000], dtype=torch.int32).view(torch.float32)
            assert getattr(launch, op)(row, 0).view(torch.int32).tolist() == [0x7FC00000] * 2
    row = torch.tensor([math.inf, -math.inf])
    assert launch.cumsum(row, 0).view(torch.int32)[1] == 0x7FC00000
    row = torch.tensor([0.0, math.inf])
    assert launch.cumprod(row, 0).view(torch.int32)[1] == 0x7FC00000


def test_complex_directions() -> None:
    """Imaginary parts of any size: exp of the result is the sum; a single one is kept as it is."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(3000, generator=generator, dtype=torch.complex128)
    row = torch.complex(row.real, 40 * row.imag)
    got = launch.logcumsumexp(row, 0)
    torch.testing.assert_close(got.exp(), row.exp().cumsum(0), rtol=1e-9, atol=1e-9)
    assert got[0] == row[0]
    inf, nan = math.inf, math.nan
    parts = ((-inf, 2), (-inf, inf), (1, 4), (-inf, 3), (inf, 1), (7, 7), (0, nan), (1, 1))
    row = torch.tensor([complex(*each) for each in parts])
    got, aten = launch.logcumsumexp(row, 0), torch.logcumsumexp(row, 0)
    torch.testing.assert_close(got, aten, equal_nan=True)


def scans(mode: DeterministicMode) -> set[str]:
    """Results of the scans."""
    return {each.action for each in mode.records if "cum" in each.overload}


FLOAT, LONG = torch.float32, torch.int64


@pytest.mark.parametrize("op", OPS[:2])
@pytest.mark.parametrize(
    ("dtype", "asked", "out"),
    [
        *itertools.product((FLOAT, LONG), (None, FLOAT, LONG), (None,)),
        *itertools.product((FLOAT, LONG), (None,), (FLOAT, LONG)),
    ],
)
def test_the_results_dtype_decides(
    op: str, dtype: torch.dtype, asked: torch.dtype | None, out: torch.dtype | None
) -> None:
    """Sums of integers that are made in floats vary, and sums of floats that are made in integers
    do not.
    """
    row, more = (
        torch.ones(9, dtype=dtype),
        {} if out is None else {"out": torch.empty(9, dtype=out)},
    )
    with DeterministicMode(simulate="cuda") as mode:
        result = getattr(torch, op)(row, 0, dtype=asked, **more)
    assert result.dtype == (asked or out or dtype)
    assert torch.equal(result, getattr(torch, op)(row, 0, dtype=result.dtype))
    assert scans(mode) == ({"substitute"} if result.dtype == FLOAT else set())


def backward(op: str, row: Tensor, weight: Tensor, times: int) -> list[Tensor]:
    row = row.detach().requires_grad_()
    result = getattr(torch, op)(row, 0)
    results = [result.detach()]
    for _ in range(times):
        (result,) = torch.autograd.grad((result * result * weight).sum(), row, create_graph=True)
        results.append(result.detach())
    return results


@pytest.mark.parametrize("op", OPS)
@given(data=st.data(), dtype=SINGLE_OR_DOUBLE, seed=SEEDS)
def test_gradients(op: str, data: st.DataObject, dtype: torch.dtype, seed: int) -> None:
    """Backward and double backward through torch's functions: those of float64, in any schedule."""
    # The backward of cumprod with a zero scans each part of the row, and its own backward that.
    n = data.draw(st.integers(2, 8 if op == "cumprod" else 300))
    make = Maker(dtype, seed=seed)
    row, weight = make.normal(n, dtype=torch.float64) / 16, make.normal(n, dtype=torch.float64) / 16
    if op == "cumprod":
        # Near 1, and with a zero, for which the formula has a branch of its own.
        row = 1 + row / 64
        row[n // 2] = row[n // 2] * (seed % 2)
    row, weight = row.to(dtype), weight.to(dtype)
    with DeterministicMode(simulate="cuda") as mode:
        got = backward(op, row, weight, 2)
    with DeterministicMode(simulate="cuda", schedule_seed=seed):
        again = backward(op, row, weight, 2)
    exact = backward(op, row.double(), weight.double(), 2)
    plain = backward(op, row, weight, 2)
    assert scans(mode) == {"substitute"}
    for mine, other, true, aten in zip(got, again, exact, plain, strict=True):
        assert same_bits(mine, other)
        error = (mine.double() - true).abs().max()
        # PyTorch's formulas round at every step, with ATen's scans and with these, and cancel. In
        # float64 what is taken for exact has its own roundings.
        scale = 512 * torch.finfo(dtype).eps * true.abs().max().clamp(min=1)
        assert error <= 4 * (aten.double() - true).abs().max() + scale
