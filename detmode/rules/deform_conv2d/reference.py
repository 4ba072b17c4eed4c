"""Deformable convolution written plainly in torch; autograd gives what tests take for true."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def deform_conv2d(
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
) -> Tensor:
    """The forward, with a place for each element of [images, offset groups, kernel, outputs]."""
    images, channels, height, width = input.shape
    kernel, outputs = tuple(weight.shape[2:]), tuple(offset.shape[2:])
    rows, columns = (
        torch.arange(kernel[d], device="cpu")[:, None] * dilation
        + torch.arange(outputs[d], device="cpu") * stride
        - pad
        for d, (dilation, stride, pad) in enumerate(
            [(dilation_h, stride_h, pad_h), (dilation_w, stride_w, pad_w)]
        )
    )
    moved = offset.view(images, offset_groups, *kernel, 2, *outputs)
    y = rows[:, None, :, None] + moved[:, :, :, :, 0]
    x = columns[None, :, None, :] + moved[:, :, :, :, 1]
    planes = input.view(images, offset_groups, channels // offset_groups, height, width)
    sampled = _sampled(planes, y, x)
    if use_mask:
        sampled = sampled * mask.view(images, offset_groups, 1, *kernel, *outputs)
    taps = sampled.reshape(images, groups, channels // groups, *kernel, *outputs)
    split = weight.view(groups, weight.shape[0] // groups, *weight.shape[1:])
    out = torch.einsum("bgcijyx,gocij->bgoyx", taps, split).reshape(
        images, weight.shape[0], *outputs
    )
    return out + bias[:, None, None]


def _sampled(planes: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """The input [images, groups, channels, height, width] at places [images, groups, ...]."""
    images, groups, _, height, width = planes.shape
    image = torch.arange(images, device="cpu").view(-1, *(1,) * (y.dim() - 1))
    group = torch.arange(groups, device="cpu").view(-1, *(1,) * (y.dim() - 2))
    total = planes.new_zeros(())
    for row, along_y in ((y.floor(), 1 - (y - y.floor())), (y.floor() + 1, y - y.floor())):
        for column, along_x in ((x.floor(), 1 - (x - x.floor())), (x.floor() + 1, x - x.floor())):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            i, j = (torch.where(inside, at, 0).long() for at in (row, column))
            # Channels come last where the other dimensions are indexed.
            values = torch.where(inside[..., None], planes.movedim(2, -1)[image, group, i, j], 0)
            total = total + values * (along_y * along_x)[..., None]
    return total.movedim(-1, 2)


def deform_conv2d_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    *how: Any,
    **named: Any,
) -> tuple[Tensor, ...]:
    """The gradients of input, weight, offset, mask and bias; the rest as of the forward."""
    leaves = [x.detach().clone().requires_grad_() for x in (input, weight, offset, mask, bias)]
    with torch.enable_grad():
        x, w, o, m, b = leaves
        out = deform_conv2d(x, w, o, m, b, *how, **named)
        gradients = torch.autograd.grad(out, leaves, grad, allow_unused=True)
    return tuple(
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, gradients)
    )
