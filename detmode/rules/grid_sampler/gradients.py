"""Launches the backward kernels that all operators of grid sampling share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from detmode.cuda import Source, ctype, launch_blocks, new_empty, new_zeros, sum_to_zeros
from detmode.cuda.rows.extents import Extents
from detmode.table.conditions import FLOATING

BILINEAR, NEAREST, BICUBIC = range(3)
TAPS = {BILINEAR: 2, NEAREST: 1, BICUBIC: 4}
"""Pixels that a sample reads along one axis, by PyTorch's number of the interpolation."""

MANY = 2**18
"""Threads from which more channels a thread are worth more than more threads."""
MOST_CHANNELS = 8
"""Channels that a thread of the sum serves at most: it computes its weights once for them."""
THREADS, RUNS = 256, 8
"""Threads of a block, the same in kernels.cu, and into how many runs it cuts many channels."""

SOURCE = Source(
    __file__,
    "kernels.cu",
    entries=(
        *(f"finish_sums<{ctype(dtype)}>" for dtype in FLOATING),
        *(
            f"grid_sampler_{kernel}<{ctype(dtype)}, {dims}, {taps}>"
            for kernel in ("scatter", "grad_grid")
            for dtype in FLOATING
            for dims in (2, 3)
            for taps in TAPS.values()
            if (kernel, taps) != ("grad_grid", 1)
        ),
    ),
)


@dataclass(frozen=True)
class Sampling:
    """A call of the forward operator.

    Args:
        input: (N, C, H, W) or (N, C, D, H, W).
        grid: (N, H_out, W_out, 2) or (N, D_out, H_out, W_out, 3).
        interpolation: a key of :data:`TAPS`.
        padding: 0 for zeros, 1 for the border, 2 for reflection.
        align_corners: whether -1 and 1 are the centres of the outermost pixels, or their edges.
    """

    input: Tensor
    grid: Tensor
    interpolation: int
    padding: int
    align_corners: bool

    @property
    def samples(self) -> int:
        """Positions in the output of one image."""
        return self.grid.shape[1:-1].numel()

    def kind(self) -> str:
        """The template arguments of a kernel."""
        taps = TAPS[self.interpolation]
        return f"<{ctype(self.input.dtype)}, {self.grid.shape[-1]}, {taps}>"

    def arguments(self, grad_output: Tensor) -> dict[str, Any]:
        """The arguments of both kernels. The coordinates are the grid's channels."""
        n, *grid_strides, of_coordinates = self.grid.stride()
        return {
            "grad_output": grad_output,
            "grid": self.grid,
            "input_size": Extents.sizes(self.input.shape),
            "output_size": Extents.sizes(grad_output.shape),
            "grad_stride": Extents.strides(grad_output.stride()),
            "grid_stride": Extents.strides((n, of_coordinates, *grid_strides)),
            "padding": self.padding,
            "align_corners": self.align_corners,
        }


def grad_input(call: Sampling, grad_output: Tensor) -> Tensor:
    """The gradient of the input, contiguous.

    Args:
        call: the arguments of the sampling.
        grad_output: (N, C, H_out, W_out) or (N, C, D_out, H_out, W_out).
    """
    input, grid = call.input, call.grid
    result = new_empty(input, input.shape)
    n, channels = input.shape[:2]
    per_thread = min(max(grad_output.numel() // MANY, 1), MOST_CHANNELS)
    groups = -(-channels // per_thread)
    sum_to_zeros(
        SOURCE, f"grid_sampler_scatter{call.kind()}", n * groups * call.samples,
        result=result, addends=call.samples * TAPS[call.interpolation] ** grid.shape[-1],
        groups=groups, per_thread=per_thread, **call.arguments(grad_output),
    )  # fmt: skip
    return result


def grad_grid(call: Sampling, grad_output: Tensor) -> Tensor:
    """The gradient of the grid, contiguous; zeros for nearest, and without channels.

    Args:
        call: the arguments of the sampling.
        grad_output: as for :func:`grad_input`.
    """
    input, grid = call.input, call.grid
    if call.interpolation == NEAREST or grad_output.numel() == 0:
        return new_zeros(grid, grid.shape)
    result = new_empty(grid, grid.shape)
    n, channels = input.shape[:2]
    samples = n * call.samples
    runs = RUNS if channels >= 4 * RUNS and samples < MANY else 1
    launch_blocks(
        SOURCE,
        f"grid_sampler_grad_grid{call.kind()}",
        min(-(-samples * runs // THREADS), 2**16),
        (THREADS // runs, runs),
        input=input, grad_grid=result, run=-(-channels // runs),
        input_stride=Extents.strides(input.stride()), **call.arguments(grad_output),
    )  # fmt: skip
    return result
