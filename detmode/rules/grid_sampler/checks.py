"""Checks of what the backward operators of grid sampling are given."""

from __future__ import annotations

import torch

from detmode.cuda.checks import check_implemented, check_scalar_type
from detmode.table.conditions import FLOATING


def check_how(
    name: str,
    interpolation: int,
    padding: int,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
) -> None:
    """Raise what ATen raises for the modes, and for the dtypes of input, grid and ``grad_output``.

    Args:
        name: of the kernel, in messages.
        interpolation: the operator's argument.
        padding: likewise.
        dtypes: of the three tensors.
    """
    if interpolation not in range(3) or padding not in range(3):
        raise RuntimeError(
            "grid_sampler(): expected an interpolation mode and a padding mode from 0 to 2, but "
            f"got {interpolation} and {padding}"
        )
    check_implemented(name, dtypes[0], FLOATING)
    check_scalar_type(*dtypes)


def matched(
    dims: int, input: tuple[int, ...], grid: tuple[int, ...], grad: tuple[int, ...]
) -> tuple[int, int, list[int], list[int]]:
    """Return the images, their channels and their sizes, and those of the output.

    Args:
        dims: of an image.
        input: the shape of the input.
        grid: the shape of the grid.
        grad: the shape of ``grad_output``.

    Raises:
        RuntimeError, ValueError: shapes that do not go together, as ATen does.
    """
    wrong = None
    if not len(input) == len(grid) == dims + 2:
        wrong = f"{dims + 2}D input and grid with same number of dimensions"
    else:
        n, channels, *sizes = input
        images, *places, coordinates = grid
        if images != n or coordinates != dims:
            wrong = f"equal batch sizes of grid and input, and size {dims} of the grid's last one"
        elif 0 in sizes:
            wrong = "input to have non-empty spatial dimensions"
    if wrong is not None:
        raise RuntimeError(
            f"grid_sampler(): expected {wrong}, but got input with sizes {list(input)} and grid "
            f"with sizes {list(grid)}"
        )
    if grad != (n, channels, *places):
        raise ValueError(
            f"grid_sampler(): expected grad_output to have sizes {[n, channels, *places]} but got "
            f"grad_output with sizes {list(grad)}"
        )
    return n, channels, sizes, places
