"""Samples of the backward of deformable convolution: they bind once torchvision is imported."""

from __future__ import annotations

from math import inf, nan

import torch
from torch import Tensor

from detmode.rules.deform_conv2d import reference
from detmode.rules.deform_conv2d.launch import DTYPES
from detmode.table.inputs import LAYOUTS, Arguments
from detmode.table.samples import Maker, Samples, made_by

OP = "torchvision::_deform_conv2d_backward"


Pair = tuple[int, int]


def _arguments(
    m: Maker,
    shape: tuple[int, ...] = (2, 4, 5, 6),
    out_channels: int = 4,
    kernel: Pair = (3, 3),
    stride: Pair = (1, 1),
    padding: Pair = (1, 1),
    dilation: Pair = (1, 1),
    groups: int = 1,
    offset_groups: int = 1,
    use_mask: bool = True,
    spread: int = 12,
) -> Arguments:
    """Offsets of up to ``spread`` quarters of a pixel: places meet, and fall outside."""
    images, channels = shape[:2]
    out = [
        (shape[2 + d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1
        for d in (0, 1)
    ]
    taps = offset_groups * kernel[0] * kernel[1]
    offset = m.integers(-spread, spread + 1, images, 2 * taps, *out).to(m.dtype) / 4
    return {
        "grad": m.normal(images, out_channels, *out),
        "input": m.normal(*shape),
        "weight": m.normal(out_channels, channels // groups, *kernel),
        "offset": offset,
        "mask": m.normal(images, taps, *out) if use_mask else m.normal(images, 1),
        "bias": m.normal(out_channels),
        **{f"stride_{axis}": stride[d] for d, axis in enumerate("hw")},
        **{f"pad_{axis}": padding[d] for d, axis in enumerate("hw")},
        **{f"dilation_{axis}": dilation[d] for d, axis in enumerate("hw")},
        "groups": groups,
        "offset_groups": offset_groups,
        "use_mask": use_mask,
    }


def _at_one_place(offset: Tensor) -> Tensor:
    """All taps of nine by nine pixels read between the same four."""
    y, x = torch.meshgrid(
        torch.arange(9, device="cpu"), torch.arange(9, device="cpu"), indexing="ij"
    )
    return (4.25 - torch.stack([y, x])[None]).to(offset)


def _special(call: Arguments) -> Arguments:
    grad = call["grad"].view(-1)[::7]
    grad[:] = torch.tensor([nan, inf, -0.0, -inf], device="cpu").to(grad)
    return call


_sample = made_by(_arguments, op=OP, dtypes=DTYPES)
_bench = made_by(_arguments, op=OP, dtypes=DTYPES[:2])


SAMPLES = Samples(
    cases=(
        _sample("overlaps", covers="collisions", variants=(*LAYOUTS, "cpu", "mps")),
        _sample("nine", (1, 2, 9, 9), 3, (1, 1), padding=(0, 0)).but(
            "one_place", "collisions", offset=_at_one_place
        ),
        _sample("no_mask", use_mask=False),
        _sample("not_moved", spread=0),
        _sample("far_away", spread=60),
        _sample("strides", (1, 2, 9, 8), 2, (3, 2), (2, 3), (0, 1), (1, 2)),
        _sample("groups", (1, 6, 4, 5), 4, groups=2, offset_groups=3),
        _sample("offset_groups", (2, 4, 4, 5), 2, offset_groups=2),
        _sample("many_images", (35, 1, 2, 3), 1, (1, 1), padding=(0, 0)),
        _sample("no_images", (0, 4, 5, 6), covers="empty"),
        _sample("one_pixel", (1, 1, 1, 1), 1, covers="odd_sizes collisions"),
        _sample("odd", (1, 1, 3, 63), 1, (1, 3), padding=(0, 0), covers="odd_sizes"),
        _sample("special_values", (1, 2, 6, 6), 1, (2, 2), padding=(0, 0), spread=3, form=_special),
        _sample("zeros").but("negative_zeros", grad=lambda grad: -torch.zeros_like(grad)),
    ),
    errors=(
        _sample("overlaps").but("mixed_dtypes", dtypes=(torch.float32,), offset=Tensor.double),
    ),
    bench=(
        _bench("dcn_r50_c3", (2, 128, 100, 168), 128),
        _bench("dcn_r50_c4", (2, 256, 50, 84), 256),
        _bench("dcn_x101_c5_groups", (2, 1024, 25, 42), 1024, (3, 3), (1, 1), (1, 1), (1, 1), 32),
        _bench("classifier_batch_64", (64, 256, 14, 14), 256),
    ),
    not_applicable={"negative_dim": "the operator takes no dimension"},
    references={OP: reference.deform_conv2d_backward},
    unlike_magnitudes={
        OP: "offsets choose the addends, and weights of the gradient of offsets have both signs"
    },
)
