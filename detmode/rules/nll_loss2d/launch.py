"""Launches the reductions of the negative log likelihood over images."""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda import Source, contiguous, ctype, launch_blocks, new_empty, of_dtypes
from detmode.cuda.checks import check_implemented, check_scalar_type, raises_like_aten
from detmode.cuda.recording import host_check
from detmode.cuda.rows.extents import sizes_of, strides_of
from detmode.table.conditions import FLOATING

THREADS = 256
PER_THREAD = 4
"""Pixels of a thread, at least, where there are enough."""
MAX_BLOCKS = 1024
"""A constant, so that the order of the additions follows from the sizes alone."""
MEAN = 1

SOURCE = Source(
    __file__,
    "kernels.cu",
    entries=of_dtypes(FLOATING, "nll_loss2d_sum", "nll_loss2d_finish"),
)


@raises_like_aten
def nll_loss2d_forward(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """The loss of ``F.nll_loss`` over images, reduced, and the sum of the weights that it has.

    Args:
        self: (N, C, H, W), floating point, the log-probabilities.
        target: (N, H, W), int64, a class for each pixel, or ``ignore_index``.
        weight: C elements, of ``self``'s dtype, or ``None`` for ones.
        reduction: 1 divides the sum by the sum of weights, 2 does not.
        ignore_index: the target of pixels that do not count.

    Returns:
        ``(output, total_weight)``, both of no dimension and of ``self``'s dtype.

    Raises:
        RuntimeError: shapes, dtypes or devices that do not go together.
        NotImplementedError: a dtype that is not floating point.
        IndexError: on the CPU, a target that is no class; a device-side assert on CUDA.
    """
    _check(self, target, weight)
    n, classes, height, width = self.shape
    _check_on_host(target, classes, ignore_index)
    pixels = n * height * width
    blocks = choose(pixels)
    partials = new_empty(self, (max(blocks, 1), 4), torch.float64)
    output, total_weight = new_empty(self, ()), new_empty(self, ())
    of_images, *of_pixels = target.stride()
    launch_blocks(
        SOURCE, f"nll_loss2d_sum<{ctype(self.dtype)}>", blocks, THREADS,
        self=self if classes else None, target=target,
        weight=contiguous(weight) if weight is not None and classes else None,
        partials=partials, n=pixels, size=sizes_of(self.shape),
        self_stride=strides_of(self.stride()),
        target_stride=strides_of((of_images, 0, *of_pixels)), ignore_index=ignore_index,
    )  # fmt: skip
    launch_blocks(
        SOURCE, f"nll_loss2d_finish<{ctype(self.dtype)}>", 1, THREADS,
        partials=partials, output=output, total_weight=total_weight, blocks=blocks,
        mean=reduction == MEAN,
    )  # fmt: skip
    return output, total_weight


def choose(pixels: int) -> int:
    """Choose the blocks that add up so many pixels, which decides the order of the additions."""
    return min(-(-pixels // (THREADS * PER_THREAD)), MAX_BLOCKS)


def _check(self: Tensor, target: Tensor, weight: Tensor | None) -> None:
    if target.dim() != 3:
        raise RuntimeError(
            "only batches of spatial targets supported (3D tensors) but got targets of size: "
            f"{list(target.shape)}"
        )
    if self.dim() != 4:
        raise RuntimeError(
            "only batches of spatial inputs supported (4D tensors), but got input of size: "
            f"{list(self.shape)}"
        )
    n, classes, height, width = self.shape
    if weight is not None and weight.numel() != classes:
        raise RuntimeError("weight tensor should be defined either for all or no classes")
    if target.shape != (n, height, width):
        raise RuntimeError(
            "input and target batch or spatial sizes don't match: target "
            f"{list(target.shape)}, input {list(self.shape)}"
        )
    check_implemented("nll_loss2d_forward_kernel", self.dtype, FLOATING)
    check_scalar_type(torch.int64, target.dtype)
    if weight is not None:
        check_scalar_type(self.dtype, weight.dtype)


@host_check
def _check_on_host(target: Tensor, classes: int, ignore_index: int) -> None:
    if not target.is_cpu:
        return
    wrong = target[((target < 0) | (target >= classes)) & (target != ignore_index)]
    if wrong.numel():
        raise IndexError(f"Target {int(wrong[0])} is out of bounds.")
