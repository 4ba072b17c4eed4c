"""sort.cu and look_back.cuh: stable sorts of indices by blocks that wait for one another."""

from functools import partial
from itertools import accumulate

import pytest
import torch
from torch import Tensor

from detmode.cuda import host, launch_blocks
from detmode.cuda.rows.sort import TILE, TILES, sorted_positions
from detmode.table.samples import Maker
from tests.shared.cuda_sources import PRIMITIVES, SCHEDULES, in_every_schedule

SIZES = (1, 2, 50, 512, 513, 100_000, 2**31, 2**31 + 1, 2**63 - 1)
"""Destinations: one digit and two, of one bit and of all; the ends of int32 and of int64."""


def indices(n: int, size: int) -> tuple[Tensor, ...]:
    """Positions that are all over, few, one alone, and in descending order."""
    spread = Maker(torch.float32, seed=n).integers(0, size, n)
    one = torch.full((n,), size - 1)
    return spread, spread % min(size, 7), one, spread.sort(descending=True).values


def positions_and_order(index: Tensor, size: int) -> Tensor:
    """Both halves of a sort, as int64."""
    return torch.stack([half.long() for half in sorted_positions(index, size)])


# With fewer tiles a thread has more positions: eight, and three.
@pytest.mark.parametrize(
    ("n", "tiles"),
    [
        *((n, TILES) for n in (0, 1, 31, 33, 513, TILE // 2 + 1, TILE, TILE + 1, 2 * TILE + 9)),
        *((TILE + 1, 1), (TILE + 9, 3)),
    ],
)
def test_positions_are_sorted_stably(n: int, tiles: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys and the order are torch's, for every number of tiles and of bits."""
    monkeypatch.setattr("detmode.cuda.rows.sort.TILES", tiles)
    for size in SIZES if n < TILE // 2 else (512, 2**31 + 1):
        for index in indices(n, size):
            sort_it = partial(positions_and_order, index, size)
            found = in_every_schedule(sort_it, (None, n))
            assert torch.equal(found, torch.stack(torch.sort(index, stable=True))), size


@pytest.mark.parametrize("n", [100, TILE + 9])
def test_positions_that_count_from_the_end(n: int) -> None:
    """They are accepted where the index wraps; what is beyond is refused, as they are without."""
    index = indices(n, 600)[0]
    turned = torch.where(torch.arange(n) % 3 == 0, index - 600, index)
    for found, expected in zip(
        sorted_positions(turned, 600, wraps=True), sorted_positions(index, 600)
    ):
        assert torch.equal(found, expected)
    for first, wraps in ((-601, True), (600, True), (-1, False)):
        turned[0] = first
        with pytest.raises(host.DeviceAssert):
            sorted_positions(turned.clamp(min=first), 600, wraps=wraps)


@pytest.mark.parametrize(("n", "size"), [(100, 2**40), (TILE + 9, 50)])
def test_no_data_race(n: int, size: int) -> None:
    """No two threads meet unordered, whether a block sorts alone or goes on from others."""
    index = indices(n, size)[0]
    with host.check_races():
        assert torch.equal(sorted_positions(index, size)[1], index.sort(stable=True).indices)


@pytest.mark.parametrize(
    ("size", "passes"), [(1, 1), (512, 1), (513, 2), (2**18, 2), (2**18 + 1, 3), (2**31, 4)]
)
def test_no_more_bits_are_sorted_than_positions_have(
    size: int, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One launch counts and one sorts by each nine bits; a tile alone takes one launch."""
    launched: list[str] = []
    monkeypatch.setattr(host, "launch_blocks", lambda source, entry, *given: launched.append(entry))
    for n, expected in (
        (TILE, ["sort_tiles<int32_t>"]),
        (TILE + 1, ["sort_count", *["sort_tiles<int32_t>"] * passes]),
    ):
        launched.clear()
        sorted_positions(torch.zeros(n, dtype=torch.int64), size)
        assert launched == expected


@pytest.mark.parametrize(
    ("n", "blocks"), [(16_384, 16), (24_576, 24), (50_000, 25), (100_000, 25), (1_000_000, 123)]
)
def test_many_blocks_sort_few_positions(
    n: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tens of thousands of positions are counted and sorted by tens of blocks."""
    launched: list[int] = []
    monkeypatch.setattr(
        host, "launch_blocks", lambda source, entry, grid, *_: launched.append(grid[0])
    )
    sorted_positions(torch.zeros(n, dtype=torch.int64), 8192)
    assert launched == [blocks] * 3


def test_more_positions_than_int32_has_are_refused() -> None:
    """They are named, and nothing is allocated for them."""
    with pytest.raises(RuntimeError, match="at most 2147483647 indices .* got 2147483648"):
        sorted_positions(torch.zeros((), dtype=torch.int64).expand(2**31), 5)


def look_back(words: Tensor, tile: int, count: int) -> int:
    """Sum of all tiles before ``tile``, by their words."""
    found = torch.zeros(1, dtype=torch.int64)
    launch_blocks(PRIMITIVES, "look_back", 1, 1, words=words, found=found, tile=tile, count=count)
    return int(found)


@pytest.mark.parametrize("tile", [0, 1, 2, 7, 8, 9, 16, 17, 40])
def test_it_does_not_matter_how_far_the_tiles_before_are(tile: int) -> None:
    """A tile adds up what is before it from own counts and from sums, and publishes the sum."""
    generator = torch.Generator().manual_seed(tile)
    for _ in SCHEDULES:
        counts = torch.randint(0, 9, (tile + 1,), generator=generator).tolist()
        sums = list(accumulate(counts))
        has_sum = torch.rand(tile + 1, generator=generator) < 0.2
        words = [
            ~s if i == 0 or has_sum[i] else c + 1 for i, (c, s) in enumerate(zip(counts, sums))
        ]
        given = torch.tensor([*words[:tile], 0, 7], dtype=torch.int32)
        assert look_back(given, tile, counts[tile]) == sums[tile] - counts[tile]
        assert given.tolist() == [*words[:tile], ~sums[tile], 7]


def test_sums_reach_to_the_end_of_int32() -> None:
    """The largest sum is told from every own count."""
    words = torch.tensor([~(2**31 - 9), 5, 0], dtype=torch.int32)
    assert look_back(words, 2, 3) == 2**31 - 5
    assert words[2] == ~(2**31 - 2)


def test_a_tile_that_says_nothing_is_found() -> None:
    """A wait that would never end on a GPU is an error on the host."""
    with pytest.raises(host.DeviceAssert, match=r"look_back\.cuh.*word\[b\] != 0"):
        look_back(torch.tensor([~1, 0, 0], dtype=torch.int32), 2, 3)
