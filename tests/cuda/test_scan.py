"""scan.cuh and exp_log.cuh: scans in a fixed order, and the functions that they need."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
from cuda_sources import pattern

from detmode.cuda import Source, compile_for, ctype, empty, host, launch, launch_blocks

# Threads, rows and elements at once: tiles of 32 and of 256 elements.
SHAPES = ((32, 1, 1), (64, 2, 2))
TYPES = ("float", "double")
SCANS = Source(
    __file__,
    "scan.cu",
    entries=(
        *(
            f"scan<{of}, {threads}, {rows}, {vec}>"
            for of in ("runs", "float_sums")
            for threads, rows, vec in SHAPES
        ),
        *(f"{name}<{T}>" for name in ("exponentials", "logarithms", "powers") for T in TYPES),
    ),
)


def scan(of: str, values: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
    """The scan of a row, with the tree that its tiles need."""
    threads, rows, vec = shape
    n = values.numel()
    tiles = -(-n // (threads * rows * vec))
    nodes, level = 0, tiles
    while level:
        nodes, level = nodes + level, level // 32
    marks = torch.zeros(nodes + 1, dtype=torch.int32)
    totals = empty((nodes, 4), torch.int32, "cpu")
    output = empty((n,), values.dtype, "cpu")
    entry = f"scan<{of}, {threads}, {rows}, {vec}>"
    stride = values.stride(0)
    launch_blocks(SCANS, entry, tiles, threads, values, output, marks, totals, nodes, n, stride)
    return output


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="NVRTC comes through CuPy")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_compiles(arch: str) -> None:
    """NVRTC takes the headers."""
    assert compile_for(SCANS, arch)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
# One tile and its neighbours, a whole node, two levels of nodes and three.
@pytest.mark.parametrize("n", [1, 31, 32, 33, 256, 257, 1024, 1057, 8300, 32768, 34000])
def test_every_element_is_joined_once_and_in_order(n: int, shape: tuple[int, int, int]) -> None:
    """The scan of positions finds no gap, no repetition and no inversion."""
    assert torch.equal(scan("runs", torch.arange(n), shape), torch.arange(n))
    with host.schedule(n):
        assert torch.equal(scan("runs", torch.arange(n), shape), torch.arange(n))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_do_not_depend_on_the_schedule(shape: tuple[int, int, int]) -> None:
    """Float sums, whose bits depend on their order, have the same ones for every schedule."""
    values = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    seen = set()
    for seed in (None, *range(20)):
        with host.schedule(seed):
            seen.add(pattern(scan("float_sums", values, shape)))
    assert len(seen) == 1


@pytest.mark.parametrize("n", [1, 100, 256, 2000])
def test_bits_do_not_depend_on_what_follows(n: int) -> None:
    """The result at an element is that of the row up to it."""
    values = torch.randn(9000, generator=torch.Generator().manual_seed(1))
    shape = SHAPES[1]
    assert torch.equal(scan("float_sums", values, shape)[:n], scan("float_sums", values[:n], shape))


def test_elements_lie_anywhere() -> None:
    """A strided row, a repeated element, and a row that is not aligned to a pack."""
    values = torch.arange(6000)
    for row in (values[::3] // 3, values[1:] - 1):
        assert torch.equal(scan("runs", row, SHAPES[1]), torch.arange(row.numel()))
    strided = torch.arange(4000).repeat_interleave(3)[::3]
    assert torch.equal(scan("runs", strided, SHAPES[1]), torch.arange(4000))
    ones = torch.ones(1).expand(500)
    assert torch.equal(scan("float_sums", ones, SHAPES[1]), torch.arange(1.0, 501.0))


def apply(name: str, values: torch.Tensor, *arguments: int) -> torch.Tensor:
    output = empty(values.shape, values.dtype, "cpu")
    n = values.numel()
    launch(SCANS, f"{name}<{ctype(values.dtype)}>", n, values, output, n, *arguments)
    return output


def worst(got: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error in units of the last place."""
    spacing = torch.nextafter(exact.abs(), torch.tensor(math.inf, dtype=exact.dtype)) - exact.abs()
    return float(((got - exact).abs() / spacing).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_exponential(dtype: torch.dtype) -> None:
    """About one unit in the last place, down to the smallest normal numbers; then 0."""
    least = -87.0 if dtype is torch.float32 else -708.0
    generator = torch.Generator().manual_seed(0)
    spread = torch.rand(20000, generator=generator, dtype=torch.float64)
    near = torch.ldexp(-spread, torch.arange(20000) % 60 - 55)
    values = torch.cat([least * spread, near.clamp(min=least)]).to(dtype)
    got = apply("exponentials", values)
    if dtype is torch.float32:
        assert worst(got.double(), values.double().exp()) * 2.0**-29 < 1.2
    else:
        assert worst(got, values.exp()) <= 2
    edges = torch.tensor([0.0, -0.0, least - 1, -math.inf, math.nan], dtype=dtype)
    assert apply("exponentials", edges)[:4].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert apply("exponentials", edges)[4].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_logarithm(dtype: torch.dtype) -> None:
    """About one unit in the last place, also close to 1, where the logarithm is small."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.rand(20000, generator=generator, dtype=torch.float64)
    wide = torch.ldexp(1 + spread, torch.arange(20000) % 240 - 120)
    near = 1 + torch.ldexp(spread - 0.5, -(torch.arange(20000) % 20))
    values = torch.cat([wide, near, torch.tensor([1.0])]).to(dtype)
    got = apply("logarithms", values)
    if dtype is torch.float32:
        assert worst(got.double(), values.double().log()) * 2.0**-29 < 1.2
    else:
        assert worst(got, values.log()) <= 2
    assert got[-1] == 0.0
    assert apply("logarithms", torch.tensor([math.nan], dtype=dtype)).isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_powers_of_two(dtype: torch.dtype) -> None:
    """Exact where the product is normal, rounded once where it is denormal, else 0 or infinite."""
    zero = 1200 if dtype is torch.float64 else 200
    for value in (1.0, 1.0 + 2.0**-20, -1.7, 0.0, -0.0, math.inf):
        values = torch.full((2 * zero,), value, dtype=dtype)
        exponents = torch.arange(2 * zero) - zero
        low = (values.double() * torch.exp2(exponents.clamp(-600, 600).double())).to(dtype)
        got = apply("powers", values, zero)
        within = exponents.abs() <= 600
        assert pattern(got[within]) == pattern(low[within])
        if dtype is torch.float64:
            expected = [math.ldexp(value, e) if e < 1023 else None for e in exponents.tolist()]
            for mine, true in zip(got.tolist(), expected, strict=True):
                assert true is None or (mine, math.copysign(1, mine)) == (
                    true,
                    math.copysign(1, true),
                )
    assert apply("powers", torch.full((2 * zero,), math.nan, dtype=dtype), zero).isnan().all()
