"""Launches the backward of 1-D reflection padding."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from detmode.cuda import Source, contiguous, ctype, launch, new_empty, of_dtypes
from detmode.cuda.checks import check_implemented, check_scalar_type
from detmode.table.conditions import COMPLEX, FLOATING

DTYPES = FLOATING + COMPLEX
SOURCE = Source(
    __file__,
    "kernels.cu",
    entries=of_dtypes(DTYPES, "reflection_pad1d_backward"),
)


def reflection_pad1d_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
    """The gradient of ``reflection_pad1d`` with respect to its input.

    Args:
        grad_output: (N, C, W_out) or (C, W_out), floating point or complex.
        self: (N, C, W) or (C, W); its shape and dtype are read.
        padding: left and right, each less than W; negative where it crops.

    Returns:
        A contiguous tensor of the shape and dtype of ``self``.

    Raises:
        RuntimeError: dtypes, devices or batches that do not go together.
        NotImplementedError: a dtype that is neither floating point nor complex.
    """
    name = "reflection_pad1d_backward"
    check_scalar_type(self.dtype, grad_output.dtype)
    check_implemented(name, self.dtype, DTYPES)
    if grad_output.shape[:-1] != self.shape[:-1]:
        raise RuntimeError(
            f"{name}(): Expected grad_output and self to have the same batch and channels, but got "
            f"{list(grad_output.shape)} and {list(self.shape)}"
        )
    grad_input = new_empty(self, self.shape)
    launch(
        SOURCE,
        f"{name}<{ctype(self.dtype)}>",
        grad_input.numel(),
        grad_output=contiguous(grad_output),
        grad_input=grad_input,
        width=self.shape[-1],
        padded=grad_output.shape[-1],
        left=padding[0],
        n=grad_input.numel(),
    )
    return grad_input
