"""scan.cuh: scans in a fixed order."""

import math

import pytest
import torch

from detmode.cuda import empty, launch_blocks
from tests.shared.cuda_sources import SCAN_SHAPES as SHAPES
from tests.shared.cuda_sources import SCANS, in_every_schedule


def scan(of: str, values: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
    """The scan of a row, with the launches that its tree needs."""
    threads, rows, vec = shape
    tile, tree = f"{of}, {threads}, {rows}, {vec}", {"totals": empty((8192,), torch.int32, "cpu")}
    output = empty(values.shape, values.dtype, "cpu")
    row = {"input": values, "stride": values.stride(0)}
    tiles = -(-values.numel() // (threads * rows * vec))
    launch_blocks(SCANS, f"scan_totals<{tile}>", tiles - 1, threads, **row, **tree)
    base, children = 0, tiles - 1
    while children >= 32:
        level = {"base": base, "children": children}
        launch_blocks(SCANS, f"scan_level<{of}>", 1, 64, **level, **tree)
        base, children = base + children, children // 32
    row["n"] = values.numel()
    launch_blocks(SCANS, f"scan<{tile}>", tiles, threads, output=output, **row, **tree)
    return output


# A few; and such that a node of 32, several, or one of the level above end near the last tile.
TILES = [(tiles, shape) for tiles in (1, 2, 3, 32, 33, 65) for shape in SHAPES]
TILES += [(1025, SHAPES[0])]
THOROUGH = [
    pytest.param(tiles, shape, marks=pytest.mark.thorough)
    for tiles in (34, 64, 1024, 1025, 1026, 1057, 2049)
    for shape in SHAPES
]


@pytest.mark.parametrize(("tiles", "shape"), [*TILES, *THOROUGH], ids=str)
def test_every_element_is_joined_once_and_in_order(tiles: int, shape: tuple[int, int, int]) -> None:
    """The scan of positions finds no gap, no repetition and no inversion."""
    size = math.prod(shape)
    for last in (1, size - 1, size):
        row = torch.arange((tiles - 1) * size + last)
        assert torch.equal(
            in_every_schedule(lambda row=row: scan("runs", row, shape), (None, 1)), row
        )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_do_not_depend_on_the_schedule(shape: tuple[int, int, int]) -> None:
    """Float sums, whose bits depend on their order, have the same ones for every schedule."""
    values = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    in_every_schedule(lambda: scan("float_sums", values, shape))


@pytest.mark.parametrize("n", [1, 100, 384, 2000])
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
