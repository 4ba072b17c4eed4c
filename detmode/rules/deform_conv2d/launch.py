"""Launcher of the backward of deformable convolution."""

from __future__ import annotations

from collections import namedtuple

import torch
from torch import Tensor

from detmode.cuda import (
    Source,
    contiguous,
    ctype,
    launch,
    new_empty,
    new_zeros,
    of_dtypes,
    sum_to_zeros,
)
from detmode.cuda.checks import check_implemented

DTYPES = (torch.float16, torch.float32, torch.float64)
"""Dtypes that torchvision's CUDA kernels take."""
IMAGES = 32
"""Images whose columns are in memory at once, as in torchvision."""

SOURCE = Source(
    __file__,
    "kernels.cu",
    entries=of_dtypes(DTYPES, "deform_sample", "deform_scatter", "finish_sums", "deform_move"),
)


Axis = namedtuple("Axis", "size kernel out stride padding dilation")
"""One axis of the convolution: the input's size, the kernel's, the output's, and the steps."""
ImageCounts = namedtuple("ImageCounts", "images channels offset_groups")
"""Images of one launch, the channels of each, and how many groups of them share their offsets."""


def deform_conv2d_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``torchvision::_deform_conv2d_backward``, for float16, float32 and float64.

    Returns:
        The gradients of ``input``, ``weight``, ``offset``, ``mask`` and ``bias``, contiguous.

    Raises:
        RuntimeError: shapes, dtypes or devices do not fit.
        NotImplementedError: torchvision's CUDA kernel does not take the dtype.
    """
    _check(grad, input, weight, offset, mask if use_mask else None, bias, groups, offset_groups)
    grad, input, weight, offset = (contiguous(x) for x in (grad, input, weight, offset))
    kept_mask = contiguous(mask) if use_mask else None
    grad_input, grad_offset = (new_empty(x, x.shape) for x in (input, offset))
    grad_mask = new_empty(mask, mask.shape)
    if not use_mask:
        grad_mask.zero_()
    flat_weight = weight.view(groups, weight.shape[0] // groups, weight.shape[1:].numel())
    # Blocks of images add up in float: torchvision rounds each time.
    opmath = torch.promote_types(weight.dtype, torch.float32)
    total = new_zeros(weight, flat_weight.shape, opmath)
    (height, width), (kernel_h, kernel_w) = input.shape[2:], weight.shape[2:]
    out_h, out_w = grad.shape[2:]
    rows = Axis(height, kernel_h, out_h, stride_h, pad_h, dilation_h)
    columns = Axis(width, kernel_w, out_w, stride_w, pad_w, dilation_w)
    for first in range(0, input.shape[0], IMAGES):
        part = slice(first, first + IMAGES)
        images = input[part].shape[0]
        # [images, out channels, ...] as [groups, out channels of one, images * outputs].
        grad_of_part = grad[part].view(images, groups, flat_weight.shape[1], out_h * out_w)
        grad_of_part = contiguous(grad_of_part.permute(1, 2, 0, 3)).flatten(2)
        taps = torch.bmm(flat_weight.transpose(1, 2), grad_of_part)
        moved = {"offset": offset[part], "mask": None if kept_mask is None else kept_mask[part]}
        counts = ImageCounts(images, input.shape[1], offset_groups)
        common = moved | {"rows": rows, "columns": columns, "counts": counts}
        launch(
            SOURCE, f"deform_move<{ctype(input.dtype)}>", grad_offset[part].numel() // 2,
            grad_columns=taps, input=input[part], grad_offset=grad_offset[part],
            grad_mask=grad_mask[part], **common,
        )  # fmt: skip
        # Each tap of a channel may meet at one pixel, once.
        most = taps.numel() // max(images * input.shape[1], 1)
        sum_to_zeros(
            SOURCE, f"deform_scatter<{ctype(input.dtype)}>", taps.numel(),
            result=grad_input[part], addends=most, grad_columns=taps, **common,
        )  # fmt: skip
        # The gradients of the taps are done with: their memory takes the taps themselves.
        name = f"deform_sample<{ctype(input.dtype)}>"
        launch(SOURCE, name, taps.numel(), input=input[part], sampled=taps, **common)
        total += torch.bmm(grad_of_part, taps.transpose(1, 2))
    grad_weight = contiguous(total, weight.dtype).view(weight.shape)
    return grad_input, grad_weight, grad_offset, grad_mask, grad.sum((0, 2, 3))


def _check(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    bias: Tensor,
    groups: int,
    offset_groups: int,
) -> None:
    name = "deform_conv2d_backward"
    if not grad.dim() == input.dim() == weight.dim() == 4:
        raise RuntimeError(f"{name}: grad, input and weight should have 4 dimensions")
    if groups < 1 or offset_groups < 1 or input.shape[1] % offset_groups:
        raise RuntimeError(f"{name}: {input.shape[1]} channels do not fall into groups")
    batch, kernel, outputs = input.shape[0], weight.shape[2:].numel(), grad.shape[2:]
    expected = {
        "grad": (grad, (batch, weight.shape[0], *outputs)),
        "weight": (weight, (weight.shape[0], input.shape[1] // groups, *weight.shape[2:])),
        "offset": (offset, (batch, 2 * offset_groups * kernel, *outputs)),
        "mask": (mask, (batch, offset_groups * kernel, *outputs)),
        "bias": (bias, (weight.shape[0],)),
    }
    for argument, (tensor, shape) in expected.items():
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise RuntimeError(
                f"{name}: {argument} should have shape {list(shape)}, but got {list(tensor.shape)}"
            )
        if tensor.dtype != input.dtype or tensor.device != input.device:
            raise RuntimeError(f"{name}: {argument} should have the dtype and device of input")
    if weight.shape[0] % groups or input.shape[1] % groups:
        raise RuntimeError(f"{name}: weight's channels do not fall into {groups} groups")
    check_implemented(name, input.dtype, DTYPES)
