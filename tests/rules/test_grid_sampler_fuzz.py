"""Grid sampling's backward on the host runner, and F.grid_sample in the mode."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from detmode import DeterministicMode
from detmode.cuda import host, unavailable
from detmode.rules.grid_sampler import gradients, launch, reference
from detmode.rules.grid_sampler.arguments import BICUBIC, backward, grid_of
from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))

OPERATORS = {2: launch.grid_sampler_2d_backward, 3: launch.grid_sampler_3d_backward}
ATEN = {2: torch.ops.aten.grid_sampler_2d_backward, 3: torch.ops.aten.grid_sampler_3d_backward}
LAYOUTS = ("contiguous", "channels_last", "sliced", "transposed", "expanded")
MODES, PADDINGS = range(3), range(3)
SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-40)
# No int holds these in pixels, or an even and an odd number of reflections from there.
FAR = (*SPECIAL, 3e5, -3e5, 1e12, -1e12, 3e38)

seeds = st.integers(0, 2**32 - 1)
sizes = st.sampled_from([1, 1, 2, 3, 4, 5, 7])
# How many channels a thread serves, and whether a block cuts them into runs, depend on this.
many = st.sampled_from([1, 50, 2**18])


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """The same shape with other strides, and the same values where the layout does not repeat."""
    if layout == "channels_last" and tensor.dim() > 3:
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return tensor.contiguous(memory_format=formats[tensor.dim()])
    if layout == "sliced":
        return tensor.repeat_interleave(2, -1).repeat_interleave(3, 0)[1::3, ..., ::2]
    if layout == "transposed":
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "expanded":
        return tensor[:, :1].expand(tensor.shape)
    return tensor


@st.composite
def calls(draw: st.DrawFn, dtype: torch.dtype, dims: int) -> dict[str, Any]:
    """Arguments of an operator, in some layouts; any interpolation, also 3-d bicubic."""
    batch = (draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 35])))
    size, out = ([draw(sizes) for _ in range(dims)] for _ in range(2))
    mode = draw(st.sampled_from(MODES))
    work = math.prod((*batch, *out)) * (gradients.TAPS[mode] ** dims)
    assume(work < 20_000)
    call = backward(
        Maker(dtype, seed=draw(seeds)),
        batch,
        size,
        out,
        mode,
        draw(st.sampled_from(PADDINGS)),
        draw(st.booleans()),
        reach=draw(st.sampled_from([0, 2, 40])),
    )
    for name in ("grad_output", "input", "grid"):
        if name != "grid" or not draw(st.booleans()):
            layout = draw(st.sampled_from(LAYOUTS))
            call[name] = laid_out(call[name], "sliced" if name == "grid" else layout)
    return call


def same_bits(first: Tensor, second: Tensor) -> bool:
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[first.itemsize]
    return torch.equal(first.view(integer), second.view(integer))


def wide(call: dict[str, Any], dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """The same in float64, or another dtype."""
    return {
        name: value.to(dtype).contiguous() if isinstance(value, Tensor) else value
        for name, value in call.items()
    }


def bounds(call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """What each gradient may be off: roundings of the addends' magnitudes, in opmath.

    A position is off by a rounding of the largest position, which moves a weight by as much, times
    the largest slope.
    """
    dtype = call["input"].dtype
    unit = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps
    sizes = torch.tensor(call["input"].shape[2:]).max()
    reach = 1 + sizes * (1 + call["grid"].double().abs().max())
    taps = 4 if call["interpolation_mode"] == BICUBIC else 2
    relative = unit * (20 * reach + 4 * taps ** call["grid"].shape[-1])
    gradients = call["grad_output"].double().abs()
    largest = call["input"].double().abs().max()
    of_grid = relative * 20 * largest * sizes * gradients.sum(1).max()
    of_input = relative * 20 * gradients.sum((0, *range(2, gradients.dim()))).max()
    return of_input, of_grid


def assert_close(got: Tensor, exact: Tensor, bound: Tensor) -> None:
    """Within `bound` and a rounding to the dtype, and special where `exact` is."""
    limit = torch.finfo(got.dtype)
    assert torch.equal(exact.isnan(), got.isnan())
    inside = exact.isfinite() & (exact.abs() + bound < limit.max)
    assert torch.equal(exact[exact.isinf()], got[exact.isinf()].double())
    allowed = bound + limit.eps * exact.abs() + limit.smallest_normal * limit.eps
    error = (got.double() - exact).abs()
    assert (error[inside] <= allowed.expand_as(error)[inside]).all(), (error - allowed)[
        inside
    ].max()


def run(dims: int, call: dict[str, Any], seed: int) -> tuple[Tensor, Tensor]:
    """The substitute's result, the same in two schedules."""
    got = OPERATORS[dims](**call)
    with host.schedule(seed):
        again = OPERATORS[dims](**call)
    for first, second, like in zip(got, again, (call["input"], call["grid"]), strict=True):
        assert first is not None
        assert second is not None
        assert same_bits(first, second)
        assert (first.shape, first.dtype) == (like.shape, like.dtype)
        assert first.is_contiguous()
    return got[0], got[1]  # type: ignore[return-value]


@settings(deadline=None)
@given(data=st.data(), dims=st.sampled_from([2, 2, 3]), dtype=st.sampled_from(FLOATING))
def test_gradients(data: st.DataObject, dims: int, dtype: torch.dtype) -> None:
    """Within roundings of float64, the bits of any schedule, and the reference is ATen's."""
    call = data.draw(calls(dtype, dims))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "MANY", data.draw(many))
        got = run(dims, call, data.draw(seeds))
    exact = reference.backward(**wide(call))
    assert exact[0] is not None
    for mine, true, bound in zip(got, exact, bounds(call), strict=True):
        assert_close(mine, true, bound)
    if dims == 2 or call["interpolation_mode"] != BICUBIC:
        double = {**wide(call)}
        aten = ATEN[dims](**double)
        for true, theirs, bound in zip(exact, aten, bounds(double), strict=True):
            assert_close(theirs, true, bound)


@settings(deadline=None)
@given(data=st.data(), dims=st.sampled_from([2, 2, 3]), dtype=st.sampled_from(FLOATING))
def test_special_values(data: st.DataObject, dims: int, dtype: torch.dtype) -> None:
    """NaN, infinities and positions far outside come out as ATen's CUDA kernels give them."""
    call = data.draw(calls(dtype, dims))
    for name, values in (("grad_output", SPECIAL), ("input", SPECIAL), ("grid", FAR)):
        call[name] = call[name].contiguous()
        flat = call[name].view(-1)
        for value in data.draw(st.lists(st.sampled_from(values), max_size=3)):
            if abs(value) < torch.finfo(dtype).max or not math.isfinite(value):
                flat[data.draw(st.integers(0, flat.numel() - 1))] = value
    got = run(dims, call, data.draw(seeds))
    # In the kernels' own precision: far outside, what it holds of a position picks the pixel.
    exact = reference.backward(**wide(call, dtype if dtype == torch.float64 else torch.float32))
    for mine, true in zip(got, exact, strict=True):
        assert true is not None
        # What float64 holds may not fit.
        fits = true.isnan() | true.isinf() | (true.abs() < torch.finfo(dtype).max / 4)
        assert torch.equal(mine.isnan() & fits, true.isnan())
        infinite = true.isinf()
        assert torch.equal(mine[infinite].double(), true[infinite].double())
        assert not (mine.isinf() & fits & ~infinite).any()
        assert not (got[0].signbit() & (got[0] == 0)).any(), "sums start from +0.0"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDINGS)
def test_position_that_overflows(mode: int, padding: int) -> None:
    """A place so far outside that float32 does not hold its position is as one at infinity."""
    grad_output, input = torch.ones(1, 1, 1, 1), torch.tensor([[[[0.5, 0.25]]]])
    near, far = (torch.tensor([[[[x, 0.125]]]]) for x in (3e38, math.inf))
    call = (mode, padding, False, (True, True))
    got, expected = (OPERATORS[2](grad_output, input, grid, *call) for grid in (near, far))
    for one, other in zip(got, expected, strict=True):
        assert same_bits(one, other)


@pytest.mark.parametrize("gradient", [1.25, math.inf])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_positions(mode: int, padding: int, align_corners: bool, gradient: float) -> None:
    """Borders, what no int holds, and what is folded more often than an int counts."""
    far = [side * x for side in (-1, 1) for x in (math.inf, 1e300, 2.0**40 + 0.125, 2.0**33 + 0.25)]
    values = torch.tensor(
        [*far, math.nan, -1.375, -1.0, -0.25, 0.0, 0.125, 0.875, 1.0, 1.25], dtype=torch.float64
    )
    grid = torch.cartesian_prod(values, values).view(1, len(values), len(values), 2)
    input = Maker(torch.float64).normal(1, 2, *((5, 3) if align_corners else (4, 2)))
    grad_output = torch.full((1, 2, *grid.shape[1:3]), gradient, dtype=torch.float64)
    # Where every sample's gradient is infinite, one pixel's sum shows only one of them.
    pairs = [(grad_output, grid)]
    if math.isinf(gradient):
        pairs = [
            (grad_output[..., :1, i : i + 1], grid[:, i : i + 1, i : i + 1]) for i in range(9, 17)
        ]
    for incoming, places in pairs:
        call = (incoming, input, places, mode, padding, align_corners, (True, True))
        for got, exact in zip(OPERATORS[2](*call), reference.backward(*call), strict=True):
            assert got is not None
            assert exact is not None
            assert torch.allclose(got, exact, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_error_is_smaller_than_atens() -> None:
    """Twenty thousand samples of sixteen pixels: the sums' errors are below those of ATen's."""
    call = backward(Maker(torch.float32), (1, 2), (4, 4), (100, 200), reach=0)
    exact = reference.backward(**wide(call))[0]
    assert exact is not None
    ours, aten = launch.grid_sampler_2d_backward(**call)[0], ATEN[2](**call)[0]
    assert ours is not None
    error, atens = ((each.double() - exact).abs().max() for each in (ours, aten))
    assert 10 * error < atens


@pytest.mark.parametrize("mask", [[False, True], [False, False], [True, False]])
def test_output_mask(mask: list[bool]) -> None:
    """The gradient of the input is left out where it is not asked for; the grid's never is."""
    call = backward(Maker(torch.float32), (1, 2), (4, 4), (3, 3), output_mask=mask)
    of_input, of_grid = launch.grid_sampler_2d_backward(**call)
    expected = ATEN[2](**call)
    assert (of_input is None) == (expected[0] is None)
    assert torch.allclose(of_grid, expected[1], rtol=1e-4)


def test_what_does_not_go_together_is_rejected() -> None:
    """Where ATen reads beyond a tensor, or leaves a result as it was allocated."""
    call = backward(Maker(torch.float32), (1, 2), (4, 4), (3, 3))
    run_2d = launch.grid_sampler_2d_backward
    with pytest.raises(ValueError, match="grad_output to have sizes"):
        run_2d(**call | {"grad_output": torch.ones(1, 2, 3, 4)})
    with pytest.raises(RuntimeError, match="interpolation mode"):
        run_2d(**call | {"interpolation_mode": 3})
    with pytest.raises(RuntimeError, match="padding mode"):
        run_2d(**call | {"padding_mode": -1})
    cudnn = launch.cudnn_grid_sampler_backward
    with pytest.raises(RuntimeError, match="Invalid arguments"):
        cudnn(*(call[name].bfloat16() for name in ("input", "grid", "grad_output")))
    with pytest.raises(RuntimeError, match="Invalid arguments"):
        cudnn(torch.ones(1, 1025, 2, 2), torch.ones(1, 1, 1, 2), torch.ones(1, 1025, 1, 1))


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("mode", "dims"),
    [("bilinear", 2), ("nearest", 2), ("bicubic", 2), ("bilinear", 3), ("nearest", 3)],
)
def test_grid_sample(mode: str, dims: int, padding_mode: str, align_corners: bool) -> None:
    """F.grid_sample forward and backward in the mode, against float64 on the CPU."""
    make = Maker(torch.float32, seed=dims)
    size = (5,) * dims if align_corners else (4,) * dims
    input = make.normal(2, 3, *size).requires_grad_()
    grid = grid_of(make, size, (2, *(6,) * dims), align_corners).requires_grad_()
    weight = make.normal(2, 3, *(6,) * dims)
    options = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    with DeterministicMode(simulate="cuda") as active:
        output = F.grid_sample(input, grid, **options)
        got = torch.autograd.grad(output, (input, grid), weight)
    names = [record.overload for record in active.records if record.action == "substitute"]
    assert names == [f"aten::grid_sampler_{dims}d_backward.default"]
    doubles = [tensor.detach().double().requires_grad_() for tensor in (input, grid)]
    exact = torch.autograd.grad(F.grid_sample(*doubles, **options), doubles, weight.double())
    for mine, true in zip(got, exact, strict=True):
        assert torch.allclose(mine.double(), true, rtol=1e-5, atol=1e-5 * float(true.abs().max()))


def test_spatial_transformer() -> None:
    """Gradients of an affine transformation's parameters, the same in every schedule."""
    make = Maker(torch.float32)
    images, theta = make.normal(3, 2, 8, 9), make.normal(3, 2, 3) / 8
    theta[:, 0, 0] += 1
    theta[:, 1, 1] += 1

    def parameters(images: Tensor, theta: Tensor) -> list[Tensor]:
        leaves = [tensor.detach().clone().requires_grad_() for tensor in (images, theta)]
        grid = F.affine_grid(leaves[1], [3, 2, 7, 6], align_corners=False)
        sampled = F.grid_sample(leaves[0], grid, align_corners=False)
        sampled.square().sum().backward()
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    runs = []
    for seed in (None, 1, 2):
        with DeterministicMode(simulate="cuda", schedule_seed=seed):
            runs.append(parameters(images, theta))
    for other in runs[1:]:
        assert all(same_bits(first, second) for first, second in zip(runs[0], other, strict=True))
    exact = parameters(images.double(), theta.double())
    for mine, true in zip(runs[0], exact, strict=True):
        assert torch.allclose(mine.double(), true, rtol=1e-3, atol=1e-4 * float(true.abs().max()))


def test_grid_without_gradient() -> None:
    """The input's gradient alone, and the grid's alone, reach their leaves."""
    make = Maker(torch.float32)
    input, grid = make.normal(1, 1, 4, 4), grid_of(make, (4, 4), (1, 3, 3), False)
    for leaf, mode in ((input, "bilinear"), (grid, "bilinear"), (grid, "nearest")):
        leaf.requires_grad_()
        with DeterministicMode(simulate="cuda"):
            F.grid_sample(input, grid, mode=mode, align_corners=False).sum().backward()
        assert leaf.grad is not None
        expected = leaf.grad.clone()
        leaf.grad = None
        F.grid_sample(input, grid, mode=mode, align_corners=False).sum().backward()
        assert torch.allclose(leaf.grad, expected, rtol=1e-5, atol=1e-5)
        leaf.requires_grad_(False)
        leaf.grad = None
