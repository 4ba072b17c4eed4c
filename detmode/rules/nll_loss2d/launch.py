"""Launches the reductions of the negative log likelihood over images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from detmode.cuda import Launch, Source, UnsizedLaunch, contiguous, ctype, new_empty, planned
from detmode.cuda.checks import check_implemented, check_scalar_type, raises_like_aten
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
    entries=tuple(
        f"nll_loss2d_{part}<{ctype(dtype)}>" for part in ("sum", "finish") for dtype in FLOATING
    ),
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
    add, finish, blocks = _plan(
        self.dtype, self.shape, self.stride(), target.dtype, target.shape, target.stride(),
        None if weight is None else (weight.dtype, weight.numel()), reduction, ignore_index,
    )  # fmt: skip
    classes = self.shape[1]
    _check_on_host(target, classes, ignore_index)
    partials = new_empty(self, (max(blocks, 1), 4), torch.float64)
    output, total_weight = new_empty(self, ()), new_empty(self, ())
    weights = {"self": self} if classes else {}
    if weight is not None and classes:
        weights["weight"] = contiguous(weight)
    add(target=target, partials=partials, **weights)
    finish(partials=partials, output=output, total_weight=total_weight)
    return output, total_weight


def choose(pixels: int) -> int:
    """Choose the blocks that add up so many pixels, which decides the order of the additions."""
    return min(-(-pixels // (THREADS * PER_THREAD)), MAX_BLOCKS)


@planned
def _plan(
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    target_dtype: torch.dtype,
    target_shape: tuple[int, ...],
    target_strides: tuple[int, ...],
    weights: tuple[torch.dtype, int] | None,
    reduction: int,
    ignore_index: int,
) -> tuple[Launch, Launch, int]:
    """The launches that still need their tensors, and the blocks of the first."""
    if len(target_shape) != 3:
        raise RuntimeError(
            "only batches of spatial targets supported (3D tensors) but got targets of size: "
            f"{list(target_shape)}"
        )
    if len(shape) != 4:
        raise RuntimeError(
            "only batches of spatial inputs supported (4D tensors), but got input of size: "
            f"{list(shape)}"
        )
    n, classes, height, width = shape
    if weights is not None and weights[1] != classes:
        raise RuntimeError("weight tensor should be defined either for all or no classes")
    if (n, height, width) != target_shape:
        raise RuntimeError(
            "input and target batch or spatial sizes don't match: target "
            f"{list(target_shape)}, input {list(shape)}"
        )
    check_implemented("nll_loss2d_forward_kernel", dtype, FLOATING)
    check_scalar_type(torch.int64, target_dtype)
    if weights is not None:
        check_scalar_type(dtype, weights[0])
    pixels = n * height * width
    blocks = choose(pixels)
    add, finish = _unsized(dtype, classes > 0, weights is not None, reduction == MEAN)
    of_images, *of_pixels = target_strides
    add_pixels = add.of_blocks(
        blocks, pixels, sizes_of(shape), strides_of(strides),
        strides_of((of_images, 0, *of_pixels)), ignore_index,
    )  # fmt: skip
    return add_pixels, finish.of_blocks(1, blocks), blocks


@planned
def _unsized(
    dtype: torch.dtype, has_classes: bool, is_weighted: bool, mean: bool
) -> tuple[UnsizedLaunch, UnsizedLaunch]:
    """The launches without their sizes."""
    absent: dict[str, Any] = {} if has_classes else {"self": None}
    if not (has_classes and is_weighted):
        absent["weight"] = None
    name, sizes = ctype(dtype), ("n", "size", "self_stride", "target_stride", "ignore_index")
    return (
        UnsizedLaunch(SOURCE, f"nll_loss2d_sum<{name}>", sizes, THREADS, **absent),
        UnsizedLaunch(SOURCE, f"nll_loss2d_finish<{name}>", ("blocks",), THREADS, mean=mean),
    )


def _check_on_host(target: Tensor, classes: int, ignore_index: int) -> None:
    if target.device.type != "cpu":
        return
    wrong = target[((target < 0) | (target >= classes)) & (target != ignore_index)]
    if wrong.numel():
        raise IndexError(f"Target {int(wrong[0])} is out of bounds.")
