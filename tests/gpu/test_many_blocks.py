"""Launches of larger inputs only: scans, selections, sums and elections of many blocks, and others.

The samples of the families are small, for the host runner. Here more blocks than a GPU holds at
once share their work, beside a load that changes which of them is first.
"""

from collections.abc import Callable

import pytest
import torch
from variation import Load

from detmode.rules.grid_sampler.arguments import backward
from detmode.table.conditions import FLOATING, INTEGRAL
from detmode.table.samples import Maker
from detmode.verify.cases import tensors_of
from detmode.verify.claims import same_bits
from tests.shared import needs
from tests.shared.gpu_calls import DEVICES, by_substitutes

aten = torch.ops.aten
Tensors = tuple[torch.Tensor, ...]


def rounded(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Numbers of which many are equal."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 100, shape, generator=generator).to(dtype)


def spread(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Numbers around 1 and -1 whose sums round, and whose products neither vanish nor overflow."""
    generator = torch.Generator().manual_seed(0)
    values = 1 + 0.01 * torch.randn(shape, generator=generator, dtype=torch.float64)
    signs = 2 * torch.randint(0, 2, shape, generator=generator) - 1
    return (values * signs).to(dtype)


def pooled(dtype: torch.dtype, dims: int) -> Tensors:
    """The arguments of a fractional pool's backward, of many planes."""
    input = spread(dtype, 8, 64, *(9, 11, 7)[:dims])
    samples = torch.rand(8, 64, dims, generator=torch.Generator().manual_seed(0))
    forward = getattr(aten, f"fractional_max_pool{dims}d")
    output, indices = forward(input.float(), [2] * dims, [4] * dims, samples)
    return spread(dtype, *output.shape), input, indices


def pool_backward(dims: int) -> Callable[..., object]:
    func = getattr(aten, f"fractional_max_pool{dims}d_backward")
    return lambda grad, x, indices: func(grad, x, [2] * dims, [4] * dims, indices)


def sampled(size: tuple[int, ...], smooth: bool) -> Tensors:
    """A gradient, an image or volume, and a grid as large; so many samples may have tiles."""
    call = backward(Maker(torch.float32), (1, 1), size, size, smooth=smooth)
    return call["grad_output"], call["input"], call["grid"]


def indexed(dtype: torch.dtype, size: int) -> Tensors:
    """A vector of a size, and for more elements than it has their places there and their values."""
    n = (1 << 20) + 77
    places = torch.randint(0, size, (n,), generator=torch.Generator().manual_seed(0))
    return spread(dtype, size), places, spread(dtype, n)


CALLS: dict[str, tuple[Callable[..., object], Callable[[], Tensors]]] = {
    **{
        f"{op}-{dtype}": (
            lambda x, op=op: getattr(aten, op)(x, 0),
            lambda dtype=dtype: (spread(dtype, (1 << 22) + 77),),
        )
        for op in ("cumsum", "cumprod", "logcumsumexp")
        for dtype in (torch.float32, torch.float64)
    },
    **{
        f"long_{op}-{dtype}": (
            lambda x, op=op: getattr(aten, op)(x, 1),
            lambda dtype=dtype: (rounded(dtype, 2, 50_000),),
        )
        for op, dtypes in (("median", FLOATING + INTEGRAL), ("nanmedian", FLOATING))
        for dtype in dtypes
    },
    **{
        f"median_of_{n}-{dtype}": (
            lambda x: aten.median(x, 1),
            lambda dtype=dtype, n=n: (rounded(dtype, 20_000, n),),
        )
        for n, dtypes in ((30, FLOATING + INTEGRAL), (50, FLOATING))
        for dtype in dtypes
    },
    **{
        f"fractional_max_pool{dims}d_backward-{dtype}": (
            pool_backward(dims),
            lambda dtype=dtype, dims=dims: pooled(dtype, dims),
        )
        for dims in (2, 3)
        for dtype in FLOATING
    },
    **{
        f"grid_sampler_{dims}d_backward-{'smooth' if smooth else 'rough'}": (
            lambda *tensors, dims=dims: getattr(aten, f"grid_sampler_{dims}d_backward")(
                *tensors, 0, 1, True, [True, False]
            ),
            lambda size=size, smooth=smooth: sampled(size, smooth),
        )
        for dims, size, smooth in (
            (2, (1025, 1100), True),
            (3, (100, 104, 102), True),
            (3, (100, 104, 102), False),
        )
    },
    # Blocks add to few places first, to others in bins; places elect their owner in their own
    # memory, or in 16 bits beside it.
    **{
        f"index_add_to_{size}-{dtype}": (
            lambda x, index, source: x.index_add(0, index, source),
            lambda dtype=dtype, size=size: indexed(dtype, size),
        )
        for size in (150, 100_000)
        for dtype in FLOATING
    },
    **{
        f"index_put-{dtype}": (
            lambda x, index, source: x.index_put((index,), source),
            lambda dtype=dtype: indexed(dtype, 500_000),
        )
        for dtype in (torch.bfloat16, torch.float32, torch.float64)
    },
}
"""By name a call, and what makes its arguments."""


def results(run: Callable[..., object], arguments: Tensors, device: str) -> list[torch.Tensor]:
    """The substitute's result, on the CPU."""
    given = by_substitutes(lambda: run(*arguments), device)
    return [each.cpu() for each in tensors_of(given)]


@pytest.mark.cuda
@needs.compiler
@pytest.mark.parametrize("name", CALLS)
def test_bits_are_the_host_runners(name: str) -> None:
    """30 runs, every second one beside a load, have the bits of the host runner."""
    run, make = CALLS[name]
    arguments = make()
    expected = results(run, arguments, "cpu")
    on_gpu = tuple(each.cuda() for each in arguments)
    torch.cuda.synchronize()
    load = Load()
    for number in range(30):
        if number % 2 == 1:
            load()
        assert same_bits(results(run, on_gpu, "cuda"), expected), f"run {number}"


@pytest.mark.parametrize("device", DEVICES)
def test_a_long_row_comes_to_an_end(device: str) -> None:
    """Its running sums are known without a reference, and no block may begin with a wrong total."""
    # One more than fills whole nodes of the tree over its blocks, on two levels.
    n = (1 << (22 if device == "cpu" else 28)) + 1
    # Three in turn, while the blocks' lengths are powers of two: their totals are not all alike.
    values, sums = (
        torch.tensor(three, dtype=torch.float32, device=device).repeat(n // 3 + 1)[:n]
        for three in ([1, -1, 0], [1, 0, 0])
    )
    assert torch.equal(sums, by_substitutes(lambda: values.cumsum(0), device))
