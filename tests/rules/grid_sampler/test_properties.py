"""Grid sampling's backward on the host runner, and F.grid_sample in the mode."""

import math
from contextlib import nullcontext
from itertools import product
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from detmode import DeterministicMode
from detmode.cuda import bytes_of_sum
from detmode.cuda.rows.strips import Strips
from detmode.rules.grid_sampler import gradients, launch, reference
from detmode.rules.grid_sampler.arguments import backward, grid_of
from detmode.rules.grid_sampler.sampling import BICUBIC, BILINEAR, NEAREST, TAPS
from detmode.rules.grid_sampler.ways import FEW, MOST_TAPS, RUNS, SLOTS, GradientWay, choose
from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker
from tests.shared import needs
from tests.shared.selection import todays_dtypes
from tests.shared.strategies import ANY_LAYOUT, FLOATS, SEEDS, in_schedules, same_bits, sliced

pytestmark = needs.compiler

OPERATORS = {2: launch.grid_sampler_2d_backward, 3: launch.grid_sampler_3d_backward}
ATEN = {2: torch.ops.aten.grid_sampler_2d_backward, 3: torch.ops.aten.grid_sampler_3d_backward}
MODES, PADDINGS = range(3), range(3)
SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-40)
# No int holds these in pixels, or an even and an odd number of reflections from there.
FAR = (*SPECIAL, 3e5, -3e5, 1e12, -1e12, 3e38)

sizes = st.sampled_from([1, 1, 2, 3, 4, 5, 7])
in_memory = st.builds(
    GradientWay,
    st.none(),
    st.sampled_from([1, 3, 8]),
    st.sampled_from([1, RUNS]),
    st.just(False),
    st.none(),
)


@st.composite
def calls(draw: st.DrawFn, dtype: torch.dtype, dims: int) -> dict[str, Any]:
    """Arguments of an operator, in some layouts; any interpolation, also 3-d bicubic."""
    batch = (draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 35])))
    size, out = ([draw(sizes) for _ in range(dims)] for _ in range(2))
    mode = draw(st.sampled_from(MODES))
    work = math.prod((*batch, *out)) * (TAPS[mode] ** dims)
    assume(work < 20_000)
    call = backward(
        Maker(dtype, seed=draw(SEEDS)),
        batch,
        size,
        out,
        mode,
        draw(st.sampled_from(PADDINGS)),
        draw(st.booleans()),
        reach=draw(st.sampled_from([0, 2, 40])),
    )
    for name in ("grad_output", "input"):
        call[name] = draw(ANY_LAYOUT)(call[name])
    call["grid"] = draw(st.sampled_from([Tensor.contiguous, sliced]))(call["grid"])
    return call


@st.composite
def special_calls(draw: st.DrawFn, dtype: torch.dtype, dims: int) -> dict[str, Any]:
    """The same, with NaN and infinities, and positions far outside."""
    call = draw(calls(dtype, dims))
    for name, values in (("grad_output", SPECIAL), ("input", SPECIAL), ("grid", FAR)):
        call[name] = call[name].contiguous()
        flat = call[name].view(-1)
        for value in draw(st.lists(st.sampled_from(values), max_size=3)):
            if abs(value) < torch.finfo(dtype).max or not math.isfinite(value):
                flat[draw(st.integers(0, flat.numel() - 1))] = value
    return call


def wide(call: dict[str, Any], dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """The same in float64, or another dtype."""
    return {
        name: value.to(dtype).contiguous() if isinstance(value, Tensor) else value
        for name, value in call.items()
    }


def bounds(call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Largest errors of the gradients: roundings of the addends' magnitudes, in opmath.

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


def run(
    dims: int, call: dict[str, Any], seed: int, way: GradientWay | None = None
) -> tuple[Tensor, Tensor]:
    """The substitute's result, the same in two schedules."""
    got = in_schedules(lambda: launch.backward("backward", dims, **call, way=way), seed)
    for each, like in zip(got, (call["input"], call["grid"]), strict=True):
        assert (each.shape, each.dtype) == (like.shape, like.dtype)
        assert each.is_contiguous()
    return got


@pytest.mark.thorough
@given(data=st.data(), dims=st.sampled_from([2, 2, 3]), dtype=FLOATS)
def test_gradients(data: st.DataObject, dims: int, dtype: torch.dtype) -> None:
    """Within roundings of float64, the bits of any schedule, and the reference is ATen's."""
    call = data.draw(calls(dtype, dims))
    got = run(dims, call, data.draw(SEEDS), data.draw(in_memory))
    exact = reference.backward(**wide(call))
    for mine, true, bound in zip(got, exact, bounds(call), strict=True):
        assert_close(mine, true, bound)
    if dims == 2 or call["interpolation_mode"] != BICUBIC:
        double = {**wide(call)}
        aten = ATEN[dims](**double)
        for true, theirs, bound in zip(exact, aten, bounds(double), strict=True):
            assert_close(theirs, true, bound)


@given(data=st.data(), dims=st.sampled_from([2, 2, 3]), dtype=FLOATS)
def test_special_values(data: st.DataObject, dims: int, dtype: torch.dtype) -> None:
    """NaN, infinities and positions far outside come out as ATen's CUDA kernels give them."""
    call = data.draw(special_calls(dtype, dims))
    got = run(dims, call, data.draw(SEEDS))
    # In the kernels' own precision: far outside, what it holds of a position picks the pixel.
    exact = reference.backward(**wide(call, dtype if dtype == torch.float64 else torch.float32))
    for mine, true in zip(got, exact, strict=True):
        # What float64 holds may not fit.
        fits = true.isnan() | true.isinf() | (true.abs() < torch.finfo(dtype).max / 4)
        assert torch.equal(mine.isnan() & fits, true.isnan())
        infinite = true.isinf()
        assert torch.equal(mine[infinite].double(), true[infinite].double())
        assert not (mine.isinf() & fits & ~infinite).any()
        assert not (got[0].signbit() & (got[0] == 0)).any(), "sums start from +0.0"


@given(
    data=st.data(),
    dims=st.sampled_from([2, 2, 3]),
    dtype=FLOATS,
    shared=st.sampled_from([20, 40, 100, 2**14]),
)
def test_shared_memory_does_not_change_bits(
    data: st.DataObject, dims: int, dtype: torch.dtype, shared: int
) -> None:
    """A channel whose sums a block adds, or several blocks of a strip each, as added in memory."""
    call = data.draw(special_calls(dtype, dims))
    assert_same_in_shared_memory(dims, call, shared, data.draw(SEEDS))


@given(data=st.data(), dims=st.sampled_from([2, 3]), dtype=FLOATS, seed=SEEDS)
def test_neighbours_share_pixels(
    data: st.DataObject, dims: int, dtype: torch.dtype, seed: int
) -> None:
    """A thread adds its neighbour's taps at pixels of its own, as nearly all are in a smooth grid.

    The largest exponent may be the neighbour's.
    """
    sizes = [40, *[3] * (dims - 1)][::-1]
    call = backward(Maker(dtype, seed=seed), (1, 2), sizes, sizes, smooth=True)
    exponents = Maker(torch.float32, seed=seed).integers(-14, 14, *call["grad_output"].shape)
    call["grad_output"] *= torch.exp2(exponents)
    flat = call["grad_output"].view(-1)
    for value in data.draw(st.lists(st.sampled_from(SPECIAL), max_size=3)):
        flat[data.draw(st.integers(0, len(flat) - 1))] = value
    assert_same_in_shared_memory(dims, call, 2**14, seed)


@given(
    data=st.data(),
    dims=st.sampled_from([2, 2, 3]),
    dtype=FLOATS,
    blocks=st.sampled_from([1, 2, 64]),
)
def test_a_table_of_few_taps_does_not_change_bits(
    data: st.DataObject, dims: int, dtype: torch.dtype, blocks: int
) -> None:
    """A channel of up to 128 samples and 384 taps, whose sums a block has in a table.

    Blocks take turns where there are more channels.
    """
    call = data.draw(special_calls(dtype, dims))
    samples, mode = math.prod(call["grid"].shape[1:-1]), call["interpolation_mode"]
    assume(mode != BICUBIC and samples <= FEW and samples * TAPS[mode] ** dims <= MOST_TAPS)
    assert_same_in_table(dims, call, data.draw(SEEDS), blocks)


@pytest.mark.parametrize("dtype", todays_dtypes(FLOATING))
@pytest.mark.parametrize(
    ("dims", "size", "out", "mode"),
    [
        (2, (61, 1021), (8, 12), BILINEAR),
        (2, (61, 1021), (8, 16), NEAREST),
        (3, (5, 61, 67), (4, 3, 4), BILINEAR),
    ],
)
def test_a_full_table_has_all_pixels(
    dtype: torch.dtype, dims: int, size: tuple[int, ...], out: tuple[int, ...], mode: int
) -> None:
    """As many taps as a table takes, at distinct pixels, of which many want one slot."""
    call = backward(Maker(dtype, seed=3), (1, 2), size, out, mode, reach=0)
    assert_same_in_table(dims, call, 5, 1)


def assert_same_in_table(dims: int, call: dict[str, Any], seed: int, blocks: int) -> None:
    """The gradients have the same bits if blocks, so many, add the sums in a table."""
    expected = run(dims, call, seed, GradientWay(None, 1, 1))
    with mock.patch.object(gradients, "MOST_BLOCKS", blocks):
        got = run(dims, call, seed, GradientWay(None, 1, 1, few_taps=True))
    for one, other in zip(got, expected, strict=True):
        assert same_bits(one, other)


def assert_same_in_shared_memory(dims: int, call: dict[str, Any], shared: int, seed: int) -> None:
    """The gradients have the same bits if blocks with so many bytes add the sums."""
    each, pixels = bytes_of_sum(call["input"].dtype), math.prod(call["input"].shape[2:])
    strip = min(shared // each, pixels)
    # Two blocks take turns.
    strips = Strips(2, 64, strip * each, strip, -(-pixels // strip))
    got, expected = (run(dims, call, seed, GradientWay(cut, 1, 1)) for cut in (strips, None))
    for one, other in zip(got, expected, strict=True):
        assert same_bits(one, other)


@pytest.mark.parametrize(
    ("sizes", "shared", "in_strips", "per_thread", "runs"),
    [
        # images, channels, pixels, samples of each
        ((1, 1, 9, 9), 2**14, False, 1, 1),
        ((2, 32, 900, 900), 2**14, True, 1, RUNS),
        ((2, 31, 900, 900), 2**14, False, 1, 1),
        ((2, 32, 900, 900), 11, False, 1, RUNS),
        ((2, 32, 0, 900), 2**14, False, 1, RUNS),
        ((2, 32, 900, 0), 2**14, False, 1, RUNS),
        ((2, 32, 900, 2**17 - 1), 2**14, True, 8, RUNS),
        ((2, 32, 900, 2**17), 2**14, True, 8, 1),
        ((1, 1, 9, 2**18), 2**14, False, 1, 1),
        ((1, 1, 9, 2**19), 2**14, False, 2, 1),
    ],
)
def test_sizes_choose_a_way(
    sizes: tuple[int, int, int, int], shared: int, in_strips: bool, per_thread: int, runs: int
) -> None:
    """Many channels are added in shared memory, and cut into runs where samples are few."""
    n, channels, pixels, samples = sizes
    way = choose(torch.float32, 2, 2, n, channels, (1, pixels), (1, samples), shared)
    assert (way.strips is not None, *way[1:4]) == (in_strips, per_thread, runs, False)


@pytest.mark.parametrize(
    ("dims", "taps", "sizes", "few_taps"),
    [
        (2, 2, (64, 1, 1024, 96), True),
        (2, 2, (63, 1, 1024, 96), False),
        (2, 2, (64, 1, 1023, 96), False),
        (2, 2, (64, 1, 1024, 97), False),
        (2, 2, (64, 1, 1024, 0), False),
        (2, 2, (8, 8, 2**31 - 1, 1), True),
        (2, 2, (8, 8, 2**31, 1), False),
        (2, 1, (64, 1, 1024, 128), True),
        (2, 1, (64, 1, 1024, 129), False),
        (2, 4, (64, 1, 1024, 1), False),
        (3, 2, (64, 1, 1024, 48), True),
        (3, 2, (64, 1, 1024, 49), False),
    ],
)
def test_sizes_choose_a_table(
    dims: int, taps: int, sizes: tuple[int, int, int, int], few_taps: bool
) -> None:
    """Many large channels of few samples have a table, whatever shared memory a GPU has."""
    for dtype, shared in product(FLOATING, (48 * 1024, 227 * 1024)):
        n, channels, pixels, samples = sizes
        size, out = (pixels,) + (1,) * (dims - 1), (samples,) + (1,) * (dims - 1)
        way = choose(dtype, dims, taps, n, channels, size, out, shared)
        assert way.few_taps == few_taps
        assert not (few_taps and way.strips)
        assert SLOTS * (bytes_of_sum(dtype) + gradients.PLACE) <= 48 * 1024


def test_a_lookup_in_large_planes() -> None:
    """A program's own call, of 64 planes and 9 samples each, takes one launch and ATen's values."""
    make = Maker(torch.float32)
    input, grid = make.normal(64, 1, 33, 35), grid_of(make, (33, 35), (64, 3, 3), True)
    input.requires_grad_()
    with (
        mock.patch.object(gradients, "launch_blocks", wraps=gradients.launch_blocks) as launched,
        DeterministicMode(simulate="cuda"),
    ):
        F.grid_sample(input, grid, align_corners=True).sum().backward()
    entries = [call.args[1].partition("<")[0] for call in launched.call_args_list]
    assert entries == ["grid_sampler_few_taps", "grid_sampler_grad_grid"]
    got, input.grad = input.grad, None
    F.grid_sample(input, grid, align_corners=True).sum().backward()
    assert torch.allclose(got, input.grad, rtol=1e-6, atol=1e-6)


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
            assert torch.allclose(got, exact, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_error_is_smaller_than_atens() -> None:
    """Twenty thousand samples of sixteen pixels: the sums' errors are below those of ATen's."""
    call = backward(Maker(torch.float32), (1, 2), (4, 4), (100, 200), reach=0)
    exact = reference.backward(**wide(call))[0]
    ours, aten = launch.grid_sampler_2d_backward(**call)[0], ATEN[2](**call)[0]
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
    """Calls in which ATen reads beyond a tensor, or leaves a result as it was allocated."""
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


def test_grid_without_gradient() -> None:
    """The input's gradient alone, and the grid's alone, reach their leaves."""
    make = Maker(torch.float32)
    input, grid = make.normal(1, 1, 4, 4), grid_of(make, (4, 4), (1, 3, 3), False)
    for leaf, mode in ((input, "bilinear"), (grid, "bilinear"), (grid, "nearest")):
        leaf.requires_grad_()
        with DeterministicMode(simulate="cuda"):
            F.grid_sample(input, grid, mode=mode, align_corners=False).sum().backward()
        expected = leaf.grad.clone()
        leaf.grad = None
        F.grid_sample(input, grid, mode=mode, align_corners=False).sum().backward()
        assert torch.allclose(leaf.grad, expected, rtol=1e-5, atol=1e-5)
        leaf.requires_grad_(False)
        leaf.grad = None


@pytest.mark.parametrize(
    ("input", "grid"),
    [
        ((2, 2, 3, 3), (1, 2, 2, 2)),
        ((1, 2, 3, 3), (1, 2, 2, 3)),
        ((1, 2, 3, 3), (1, 2, 2, 2, 3)),
        ((1, 2, 3, 0), (1, 2, 2, 2)),
        ((1, 2, 3, 3, 3), (1, 2, 2, 2, 3)),
    ],
)
def test_what_is_wrong_is_said_as_by_aten(input: tuple[int, ...], grid: tuple[int, ...]) -> None:
    """PyTorch's shape function refuses nothing, so that ATen's words are the launcher's own."""
    given = (
        torch.zeros(1, 2, 2, 2),
        torch.zeros(input),
        torch.zeros(grid),
        0,
        0,
        False,
        [True] * 2,
    )
    said = []
    for mode in (nullcontext(), DeterministicMode(simulate="cuda")):
        with mode, pytest.raises(RuntimeError) as raised:  # compared below
            ATEN[2](*given)
        said.append(str(raised.value))
    assert said[0] == said[1]
