"""Checks of what the backward operators of grid sampling are given."""

from __future__ import annotations

import torch

from detmode.cuda.checks import check_implemented, check_scalar_type
from detmode.rules.grid_sampler.gradients import TAPS, Sampling
from detmode.table.conditions import FLOATING

PADDINGS = range(3)


def check(
    name: str,
    dims: int,
    how: Sampling,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
    input: tuple[int, ...],
    grid: tuple[int, ...],
    grad: tuple[int, ...],
) -> None:
    """Raise what ATen raises for the dtypes and shapes of input, grid and ``grad_output``.

    Args:
        name: of the kernel, in messages.
        dims: of an image.
        how: the input is sampled.
        dtypes: of the three tensors.
        input: the shape of the input, likewise the others.
        grid: likewise.
        grad: likewise.
    """
    wrong = None
    if not len(input) == len(grid) == dims + 2:
        wrong = f"{dims + 2}D input and grid with same number of dimensions"
    elif input[0] != grid[0] or grid[-1] != dims:
        wrong = f"equal batch sizes of grid and input, and size {dims} of the grid's last dimension"
    elif 0 in input[2:]:
        wrong = "input to have non-empty spatial dimensions"
    if wrong is not None:
        raise RuntimeError(
            f"grid_sampler(): expected {wrong}, but got input with sizes {list(input)} and grid "
            f"with sizes {list(grid)}"
        )
    expected = (*input[:2], *grid[1:-1])
    if grad != expected:
        raise ValueError(
            f"grid_sampler(): expected grad_output to have sizes {list(expected)} but got "
            f"grad_output with sizes {list(grad)}"
        )
    if how.interpolation not in TAPS or how.padding not in PADDINGS:
        raise RuntimeError(
            "grid_sampler(): expected an interpolation mode and a padding mode from 0 to 2, but "
            f"got {how.interpolation} and {how.padding}"
        )
    check_implemented(name, dtypes[0], FLOATING)
    check_scalar_type(*dtypes)
