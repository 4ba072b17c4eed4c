"""Max unpooling on the host runner and on the CPU, over shapes, layouts, dtypes and indices."""

from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from detmode import DeterministicMode
from detmode.rules.max_unpool import launch
from detmode.table.conditions import FLOATING, INTEGRAL
from detmode.table.samples import Maker
from tests.shared import needs
from tests.shared.last_wins import assert_last_wins, words
from tests.shared.selection import todays_dtypes
from tests.shared.strategies import LAYOUTS, SEEDS, in_schedules, same_bits

sizes = st.sampled_from([1, 2, 3, 7])
Call = tuple[Tensor, Tensor, list[int]]


@st.composite
def calls(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...]) -> Call:
    """Input, indices into each plane, and the output's size."""
    dims = draw(st.sampled_from([2, 3]))
    leading = draw(st.sampled_from([[1], [3], [2, 3], [0, 2]]))
    shape = [*leading, *(draw(sizes) for _ in range(dims))]
    output_size = [draw(sizes) for _ in range(dims)]
    dtype, spread = draw(st.sampled_from(dtypes)), draw(st.integers(1, prod(output_size)))
    indices = Maker(dtype, seed=draw(SEEDS)).integers(0, spread, *shape)
    return draw(words(shape, dtype)), draw(LAYOUTS)(indices), output_size


def run(call: Call, where: str = "") -> Tensor:
    """The launcher, or the composition for the CPU."""
    dims = len(call[2])
    more = ([1] * dims, [0] * dims) if dims == 3 else ()
    return getattr(launch, f"max_unpool{where or f'{dims}d'}")(*call, *more)


def assert_is_unpooled(got: Tensor, input: Tensor, indices: Tensor, output_size: list[int]) -> None:
    """Zeros, and in each plane the last input of each index."""
    shape = (*input.shape[: -len(output_size)], *output_size)
    leading = shape[: -len(output_size)]
    starts = torch.arange(prod(leading)).view(*leading, *(1,) * len(output_size))
    destinations = indices + starts * prod(output_size)
    assert_last_wins(got, torch.zeros(shape, dtype=input.dtype), destinations, input)


@needs.compiler
@given(call=calls(todays_dtypes(FLOATING + INTEGRAL)), seed=SEEDS)
def test_max_unpool(call: Call, seed: int) -> None:
    """The last input of each index stays, bit by bit, in any schedule; the rest is zero."""
    got = in_schedules(lambda: run(call), seed)
    assert got.is_contiguous()
    assert_is_unpooled(got, *call)


@given(call=calls(FLOATING))
def test_max_unpool_on_cpu(call: Call) -> None:
    """On the CPU the same stays, without a kernel, in ATen's memory format."""
    input, indices, output_size = call
    dims = len(output_size)
    more = ([1] * dims, [0] * dims) if dims == 3 else ()
    op = getattr(torch.ops.aten, f"max_unpool{dims}d")
    with DeterministicMode() as mode:
        got = op(input, indices, output_size, *more)
        written = op.out(input, indices, output_size, *more, out=torch.empty_like(got))
    assert {record.action for record in mode.records if "unpool" in record.overload} == {
        "substitute"
    }
    assert_is_unpooled(got, input, indices, output_size)
    assert same_bits(written, got)
    aten = op(input, indices, output_size, *more)
    wide = [d for d, size in enumerate(aten.shape) if size > 1]
    if got.numel():
        assert [got.stride(d) for d in wide] == [aten.stride(d) for d in wide]


@pytest.mark.parametrize("simulate", [None, pytest.param("cuda", marks=needs.compiler)])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_modules(dims: int, simulate: str | None) -> None:
    """``nn.MaxUnpool*d`` undoes pooling, forward and backward, in strict mode."""
    x = torch.randn(2, 3, *(4,) * dims)
    pooled, indices = getattr(nn, f"MaxPool{dims}d")(2, return_indices=True)(x)
    pooled.requires_grad_()
    with DeterministicMode(simulate=simulate) as mode:
        got = getattr(nn, f"MaxUnpool{dims}d")(2)(pooled, indices, output_size=x.shape)
        (got * x).sum().backward()
    assert "substitute" in {record.action for record in mode.records}
    assert torch.equal(got, torch.where(got != 0, x, 0))
    assert int((got != 0).sum()) == pooled.numel()
    assert torch.equal(pooled.grad, pooled.detach())


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("simulate", [None, "cuda"])
def test_index_out_of_range(simulate: str | None, by: int) -> None:
    """ATen's error, with its words."""
    input, indices = torch.ones(1, 1, 2), torch.tensor([[[0, 8]]])
    with DeterministicMode(simulate=simulate), pytest.raises(RuntimeError, match="invalid max ind"):
        torch.ops.aten.max_unpool2d(input, by * indices, [2, 4])
