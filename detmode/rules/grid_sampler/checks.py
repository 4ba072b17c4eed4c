"""Checks of what the backward operators of grid sampling are given."""

from __future__ import annotations

import torch

from detmode.cuda.checks import check_implemented, check_scalar_type
from detmode.rules.grid_sampler.sampling import Sampling
from detmode.table.conditions import FLOATING


def check_how(
    name: str, how: Sampling, dtypes: tuple[torch.dtype, torch.dtype, torch.dtype]
) -> None:
    """Raise what ATen raises for the modes, and for the dtypes of input, grid and ``grad_output``.

    Args:
        name: of the kernel, in messages.
        how: the operator's arguments.
        dtypes: of the three tensors.
    """
    if how.interpolation not in range(3) or how.padding not in range(3):
        raise RuntimeError(
            "grid_sampler(): expected an interpolation mode and a padding mode from 0 to 2, but "
            f"got {how.interpolation} and {how.padding}"
        )
    check_implemented(name, dtypes[0], FLOATING)
    check_scalar_type(*dtypes)


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
