"""Smooth grids, whose input's gradient blocks add in tiles: the bits of sums in memory."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode import DeterministicMode
from detmode.cuda import host
from detmode.cuda.rows.strips import Strips
from detmode.rules.grid_sampler import gradients, reference, tiles, ways
from detmode.rules.grid_sampler.arguments import backward
from detmode.rules.grid_sampler.sampling import BILINEAR
from detmode.rules.grid_sampler.tiles import Tiles, tiles_of, worth_tiles
from detmode.rules.grid_sampler.ways import GradientWay, choose
from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker
from tests.rules.grid_sampler.test_properties import assert_close, bounds, wide
from tests.shared import needs
from tests.shared.selection import todays_dtypes
from tests.shared.strategies import FLOATS, SEEDS, in_schedules, same_bits, sliced

pytestmark = needs.compiler

SHARED = 2**17
IN_MEMORY = GradientWay(None, 1, 1)
SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-40)
SIZES = {2: st.sampled_from([33, 9, 1, 32, 40]), 3: st.sampled_from([17, 5, 1, 16, 20])}


@pytest.fixture
def decisions(monkeypatch) -> list[int]:
    """Decisions on the GPU, one for each call: 0 where the tiles were added."""
    found: list[int] = []

    def spied(*arguments: Any) -> Tensor:
        counts = add_in_tiles(*arguments)
        found.append(int(counts[0]))
        return counts

    add_in_tiles = gradients.add_in_tiles
    monkeypatch.setattr(gradients, "add_in_tiles", spied)
    return found


def in_tiles(call: dict[str, Any], **fields: int) -> Tiles:
    """The way to add a call's gradient in tiles, with other fields."""
    grad, input = call["grad_output"], call["input"]
    cut = tiles_of(input.dtype, *input.shape[:2], input.shape[2:], grad.shape[2:], SHARED)
    assert cut is not None
    channel = cut.shared // cut.together
    together = min(fields.pop("together", cut.together), input.shape[1], SHARED // channel)
    return cut._replace(together=together, shared=together * channel, **fields)


def gradient(call: dict[str, Any], way: GradientWay) -> Tensor:
    """Of the input, with one way."""
    asked = call | {"output_mask": (True, False)}
    of_input, _ = gradients.backward("backward", call["input"].dim() - 2, **asked, way=way)
    assert of_input is not None
    return of_input


@st.composite
def calls(draw: st.DrawFn, dtype: torch.dtype, dims: int) -> dict[str, Any]:
    """Grids that are smooth, or stretched, moved beyond the input, rough, or with special values.

    Gradients have a wide range, so that keys differ and addends are rounded.
    """
    seed = draw(SEEDS)
    size, out = ([draw(SIZES[dims]) for _ in range(dims)] for _ in range(2))
    batch = draw(st.sampled_from([(1, 5), (2, 3), (2, 1), (1, 1)]))
    padding, corners, smooth = draw(st.integers(0, 2)), draw(st.booleans()), draw(st.booleans())
    make = Maker(dtype, seed=seed)
    call = backward(make, batch, size, out, BILINEAR, padding, corners, smooth=smooth or seed % 2)
    scale, shift = draw(st.sampled_from([(1, 0), (0.3, 0.5), (2.5, 0), (1, 1.5), (0, -1)]))
    call["grid"] = (call["grid"].double() * scale + shift).to(dtype)
    exponents = make.integers(-12, 12, *call["grad_output"].shape).double()
    call["grad_output"] = (call["grad_output"].double() * torch.exp2(exponents)).to(dtype)
    for name in ("grid", "grad_output"):
        flat = call[name].view(-1)
        for value in draw(st.lists(st.sampled_from(SPECIAL), max_size=3)):
            flat[draw(st.integers(0, flat.numel() - 1))] = value
        call[name] = draw(st.sampled_from([Tensor.contiguous, sliced]))(call[name])
    return call


@given(data=st.data(), dims=st.sampled_from([2, 2, 3]), dtype=FLOATS)
def test_tiles_do_not_change_bits(data: st.DataObject, dims: int, dtype: torch.dtype) -> None:
    """In any schedule, however many channels a block has and boxes a list holds."""
    call = data.draw(calls(dtype, dims))
    together, listed = (
        data.draw(st.sampled_from([2, 1, 8])),
        data.draw(st.sampled_from([500, 500, 2])),
    )
    way = IN_MEMORY._replace(tiles=in_tiles(call, together=together, listed=listed))
    got = in_schedules(lambda: gradient(call, way), data.draw(SEEDS))
    assert same_bits(got, gradient(call, IN_MEMORY))


SMOOTH = {2: ((2, 5), (70, 40), (70, 40)), 3: ((2, 3), (20, 17, 30), (20, 17, 30))}


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("dims", SMOOTH)
def test_smooth_grids_are_added_in_tiles(dims: int, seed: int | None, decisions) -> None:
    """Not by the launches behind, which is a function of the data in any schedule.

    A block has two channels of an image, the last one has one.
    """
    call = backward(Maker(torch.float32), *SMOOTH[dims], smooth=True)
    with host.schedule(seed):
        got = gradient(call, IN_MEMORY._replace(tiles=in_tiles(call, together=2)))
    assert decisions == [0]
    assert same_bits(got, gradient(call, IN_MEMORY))


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("listed", [45, 44])
def test_a_list_that_is_full_is_decided_by_its_length(
    listed: int, seed: int | None, decisions
) -> None:
    """Of the identity, the tile in the middle meets 5 by 9 boxes, in any schedule.

    The second taps of the pixels before it are its first pixels.
    """
    call = backward(Maker(torch.float32), (1, 1), (65, 65), (65, 65), align_corners=True)
    along = torch.linspace(-1, 1, 65)
    call["grid"] = torch.stack(torch.meshgrid(along, along, indexing="xy"), -1)[None]
    way = IN_MEMORY._replace(tiles=in_tiles(call, listed=listed))
    with host.schedule(seed):
        got = gradient(call, way)
    assert decisions == [int(listed < 45)]
    assert same_bits(got, gradient(call, IN_MEMORY))


HOSTILE = {
    "random": lambda grid: torch.rand(grid.shape, generator=torch.manual_seed(0)) * 2 - 1,
    "one_pixel": lambda grid: torch.zeros_like(grid),
    "one_far": lambda grid: torch.cat([grid.flatten()[:-2], torch.tensor([-1.0, -1.0])]).view_as(
        grid
    ),
    "nan": lambda grid: torch.full_like(grid, torch.nan),
    "outside": lambda grid: grid + 9,
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("strips", [False, True])
def test_rough_grids_go_the_way_of_before(kind: str, strips: bool, decisions) -> None:
    """The launches behind add what is not smooth; without a tap there is nothing to add."""
    call = backward(Maker(torch.float32), (40, 2), (70, 70), (70, 70), smooth=True)
    call = {name: x[:2] if isinstance(x, Tensor) else x for name, x in call.items()}
    call["grid"] = HOSTILE[kind](call["grid"])
    behind = IN_MEMORY
    if strips:
        behind = choose(torch.float32, 2, 2, 64, 2, (70, 70), (70, 70), SHARED)
        assert behind.strips is not None
    got = gradient(call, behind._replace(tiles=in_tiles(call)))
    assert decisions == [int(kind not in ("nan", "outside"))]
    assert same_bits(got, gradient(call, IN_MEMORY))


@pytest.mark.parametrize("strips", [False, True])
def test_launches_behind_leave_what_is_there(strips: bool, monkeypatch) -> None:
    """They neither add nor write where the tiles are added, in memory or in strips."""

    def filled(result: Tensor, *_: Any) -> Tensor:
        result.fill_(7)
        return torch.zeros(1, dtype=torch.int32)

    monkeypatch.setattr(gradients, "add_in_tiles", filled)
    call = backward(Maker(torch.float32), (1, 2), (20, 20), (20, 20))
    behind = IN_MEMORY._replace(strips=Strips(2, 64, 400 * 12, 400, 1) if strips else None)
    assert (gradient(call, behind._replace(tiles=in_tiles(call))) == 7).all()


def test_denormals_among_zeros() -> None:
    """A key that only zeros have raised is raised by the least number, too."""
    call = backward(Maker(torch.float32), (1, 1), (33, 33), (33, 33), align_corners=True)
    along = torch.linspace(-1, 1, 33)
    call["grid"] = torch.stack(torch.meshgrid(along, along, indexing="xy"), -1)[None]
    call["grad_output"] = torch.full((1, 1, 33, 33), 1e-45)
    got = gradient(call, IN_MEMORY._replace(tiles=in_tiles(call)))
    assert same_bits(got, call["grad_output"])


@pytest.mark.thorough
@pytest.mark.parametrize("dims", SMOOTH)
def test_no_access_races(dims: int) -> None:
    """The lists, the records and the tiles, in program order and shuffled; and a full list."""
    size = {2: (33, 9), 3: (5, 4, 17)}[dims]
    call = backward(Maker(torch.float32), (1, 1), size, size, smooth=True)
    for listed in (500, 1):
        way = IN_MEMORY._replace(tiles=in_tiles(call, listed=listed))
        with host.check_races(), host.schedule(5):
            gradient(call, way)


@pytest.mark.parametrize("dtype", todays_dtypes(FLOATING))
@pytest.mark.parametrize("dims", SMOOTH)
def test_errors_against_float64(dims: int, dtype: torch.dtype, decisions) -> None:
    """Within roundings of the addends' magnitudes."""
    call = backward(Maker(dtype), *SMOOTH[dims], padding=1, align_corners=True, smooth=True)
    got = gradient(call, IN_MEMORY._replace(tiles=in_tiles(call, together=2)))
    assert decisions == [0]
    assert_close(got, reference.backward(**wide(call))[0], bounds(call)[0])


def test_program_whose_grid_is_smooth(monkeypatch, decisions) -> None:
    """By default: F.grid_sample's backward has the bits that it has without tiles."""
    theta = torch.tensor([[[0.9, 0.1, 0.1], [-0.1, 1.1, 0.0]]])
    grid = F.affine_grid(theta, [1, 3, 40, 50], align_corners=False)
    image = Maker(torch.float32).normal(1, 3, 40, 50).requires_grad_()
    found = []
    for fewest in (1, math.inf):
        monkeypatch.setattr(ways, "FEWEST", fewest)
        with DeterministicMode(simulate="cuda"):
            F.grid_sample(image, grid, align_corners=False).square().sum().backward()
        found.append(image.grad)
        image.grad = None
    assert decisions == [0]
    assert same_bits(*found)


@pytest.mark.parametrize(
    ("channels", "size", "out", "strips", "worth"),
    [
        (3, (224, 224), (224, 224), 3, True),
        (64, (96, 128), (96, 128), 1, True),
        (1, (160, 192, 224), (160, 192, 224), 0, True),
        (1, (224, 224), (224, 224), 3, True),
        (1, (96, 128), (96, 128), 1, False),
        (1, (96, 128), (96, 128), 2, False),
        (1, (60, 60, 60), (60, 60, 60), 3, False),
        (3, (55, 128), (9, 9), 0, False),
        (3, (8, 8), (4, 4), 0, True),
        (3, (8, 8), (3, 5), 0, False),
    ],
)
def test_sizes_for_which_tiles_are_worth_it(
    channels: int, size: tuple[int, ...], out: tuple[int, ...], strips: int, worth: bool
) -> None:
    """Samples are not too far apart, and channels share their taps, or have no better way."""
    assert worth_tiles(channels, size, out, strips) is worth


@pytest.mark.parametrize(
    ("taps", "n", "tiled"), [(2, 7, True), (2, 6, False), (2, 0, False), (1, 7, False)]
)
def test_many_linear_samples_have_tiles(taps: int, n: int, tiled: bool) -> None:
    """From 2^20 samples of all channels on."""
    way = choose(torch.float32, 2, taps, n, 3, (224, 224), (224, 224), SHARED)
    assert (way.tiles is not None) is tiled


@pytest.mark.parametrize(
    ("dtype", "kib", "size", "together"),
    [
        # Hopper, Ada, Turing, the host
        (torch.float32, 227, (224, 224), 7),
        (torch.float32, 99, (224, 224), 3),
        (torch.float32, 64, (224, 224), 2),
        (torch.float64, 64, (224, 224), 1),
        (torch.float32, 227, (64, 64, 64), 3),
        (torch.float32, 64, (64, 64, 64), 1),
        (torch.float64, 64, (64, 64, 64), 1),
        (torch.float64, 48, (64, 64, 64), None),
        (torch.float32, 227, (65_535, 2), None),
        (torch.float32, 227, (1023, 2, 2), None),
        (torch.float32, 227, (1022, 2, 2), 3),
    ],
)
def test_channels_of_a_tile(
    dtype: torch.dtype, kib: int, size: tuple[int, ...], together: int | None
) -> None:
    """As many as fit twice into the shared memory, and at least one; numbers of 32 bits suffice."""
    cut = tiles_of(dtype, 16, 64, size, size, kib * 1024)
    assert (None if cut is None else cut.together) == together


def test_first_and_last_numbers_that_a_record_holds(decisions) -> None:
    """An input of the longest side, and taps outside of it on both ends."""
    size = tiles.LONGEST[2]
    place = torch.tensor([-0.5, 0.0, size - 1.0, size - 0.5])
    along = ((2 * place + 1) / size - 1).view(1, 1, -1)
    grid = torch.stack([along.flatten()[[0, 1, 0, 1]].view_as(along) * 0, along], -1)
    for places in (grid[:, :, :2], grid[:, :, 2:]):
        call = {
            "input": torch.zeros(1, 1, size, 1),
            "grid": places.contiguous(),
            "grad_output": torch.tensor([1.0, 3.0]).view(1, 1, 1, 2),
            "interpolation_mode": BILINEAR,
            "padding_mode": 0,
            "align_corners": False,
        }
        got = gradient(call, IN_MEMORY._replace(tiles=in_tiles(call)))
        assert got.count_nonzero() > 0
        assert same_bits(got, gradient(call, IN_MEMORY))
    assert decisions == [0, 0]
