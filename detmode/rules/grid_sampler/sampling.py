"""The kernels of grid sampling, the pixels that a sample reads, and the shapes that go together."""

from __future__ import annotations

from detmode.cuda import Source, ctype, of_dtypes
from detmode.table.conditions import FLOATING

BILINEAR, NEAREST, BICUBIC = range(3)
TAPS = {BILINEAR: 2, NEAREST: 1, BICUBIC: 4}
"""Pixels that a sample reads along one axis, by PyTorch's number of the interpolation."""

SOURCE = Source(
    __file__,
    "kernels.cu",
    entries=(
        *of_dtypes(FLOATING, "finish_sums"),
        *(
            f"grid_sampler_{kernel}<{ctype(dtype)}, {dims}, {taps}>"
            for kernel in ("scatter", "strips", "grad_grid")
            for dtype in FLOATING
            for dims in (2, 3)
            for taps in TAPS.values()
            if (kernel, taps) != ("grad_grid", 1)
        ),
        *(
            f"grid_sampler_few_taps<{ctype(dtype)}, {dims}, {taps}>"
            for dtype in FLOATING
            for dims in (2, 3)
            for taps in (TAPS[NEAREST], TAPS[BILINEAR])
        ),
    ),
)


def matched(
    dims: int, input: tuple[int, ...], grid: tuple[int, ...], grad: tuple[int, ...]
) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Return the images, their channels and their sizes, and those of the output.

    Args:
        dims: of an image.
        input: the shape of the input.
        grid: the shape of the grid.
        grad: the shape of ``grad_output``.

    Raises:
        RuntimeError, ValueError: shapes that do not go together, as ATen does.
    """
    if len(input) == len(grid) == dims + 2:
        sizes, places = input[2:], grid[1:-1]
        if input[0] == grid[0] and grid[-1] == dims and 0 not in sizes:
            expected = input[:2] + places
            if grad != expected:
                raise ValueError(
                    f"grid_sampler(): expected grad_output to have sizes {list(expected)} but got "
                    f"grad_output with sizes {list(grad)}"
                )
            return input[0], input[1], sizes, places
    raise RuntimeError(f"grid_sampler(): expected {_expected(dims, list(input), list(grid))}")


def _expected(dims: int, input: list[int], grid: list[int]) -> str:
    """Return what is missing, in ATen's order and words."""
    sizes = f"input with sizes {input} and grid with sizes {grid}"
    if input[:1] != grid[:1]:
        return f"grid and input to have same batch size, but got {sizes}"
    if grid[-1:] != [len(input) - 2]:
        return (
            f"grid to have size {len(input) - 2} in last dimension, but got grid with sizes {grid}"
        )
    if 0 in input[2:]:
        return (
            f"input to have non-empty spatial dimensions, but input has sizes {input} with "
            f"dimension {input.index(0, 2)} being empty"
        )
    return f"{dims + 2}D input and grid with same number of dimensions, but got {sizes}"
