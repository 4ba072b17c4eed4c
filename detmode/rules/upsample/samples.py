"""Samples of the backward of linear and cubic interpolation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from detmode.table import interpolation
from detmode.table.compositions import resized_planes, transposed
from detmode.table.conditions import FLOATING
from detmode.table.inputs import LAYOUTS, last, resized, special
from detmode.table.samples import Sample, Samples, sample

LINEAR1, LINEAR2 = "aten::upsample_linear1d_backward", "aten::upsample_bilinear2d_backward"
CUBIC2, LINEAR3 = "aten::upsample_bicubic2d_backward", "aten::upsample_trilinear3d_backward"
DEVICES = ("cpu", "mps")


def _lines(op: str) -> tuple[Sample, ...]:
    case = partial(sample, op=op, dtypes=FLOATING)
    return (
        case("up", lambda m: resized(m, (2, 3), (7,), (29,)), "collisions", variants=DEVICES),
        case("corners", lambda m: resized(m, (2, 3), (7,), (29,), True)),
        case("down", lambda m: resized(m, (2, 3), (29,), (7,))),
        case(
            "one_to_many",
            lambda m: resized(m, (2, 2), (1,), (1000,)),
            *("collisions", "odd_sizes"),
        ),
        case("odd", lambda m: resized(m, (1, 2), (1000,), (63,)), "odd_sizes"),
        case(
            "given_scale",
            lambda m: resized(m, (2, 3), (8,), (19,), False, 2.4),
            variants=LAYOUTS[:1],
        ),
        case("empty", lambda m: resized(m, (0, 3), (8,), (16,)), "empty"),
        case("special", lambda m: special(resized(m, (1, 1), (8,), (16,)), "grad_output")),
    )


def _planes(op: str) -> tuple[Sample, ...]:
    case = partial(sample, op=op, dtypes=FLOATING)

    return (
        case(
            "up",
            lambda m: resized(m, (2, 5), (5, 6), (10, 12)),
            "collisions",
            variants=(*LAYOUTS, *DEVICES),
        ),
        case("corners", lambda m: resized(m, (2, 3), (5, 6), (17, 31), True), "collisions"),
        case("down", lambda m: resized(m, (2, 3), (17, 31), (5, 6))),
        case("down_corners", lambda m: resized(m, (2, 3), (17, 31), (1, 6), True)),
        case("given_scales", lambda m: resized(m, (2, 2), (8, 9), (19, 5), False, 2.4, 0.6)),
        case("one_to_many", lambda m: resized(m, (2, 5), (1, 1), (33, 65)), "collisions"),
        case("last", lambda m: last(resized(m, (2, 5), (1, 2), (33, 64))), "channels_last"),
        case("odd", lambda m: resized(m, (1, 1), (63, 1), (1, 1000)), "odd_sizes"),
        case("empty", lambda m: resized(m, (0, 3), (5, 6), (10, 12)), "empty"),
        case("special", lambda m: special(resized(m, (1, 1), (4, 5), (8, 10)), "grad_output")),
    )


def _blocks(op: str) -> tuple[Sample, ...]:
    case = partial(sample, op=op, dtypes=FLOATING)
    return (
        case(
            "up",
            lambda m: resized(m, (2, 3), (3, 4, 5), (6, 8, 10)),
            "collisions",
            variants=(*LAYOUTS, *DEVICES),
        ),
        case("corners", lambda m: resized(m, (1, 2), (3, 4, 5), (5, 9, 13), True)),
        case("down", lambda m: resized(m, (1, 2), (5, 9, 13), (3, 4, 5))),
        case(
            "one_to_many",
            lambda m: resized(m, (1, 3), (1, 1, 2), (5, 9, 12)),
            "collisions",
            variants=LAYOUTS[1:],
        ),
        case("odd", lambda m: resized(m, (1, 1), (1, 63, 2), (2, 1, 1000)), "odd_sizes"),
        case("empty", lambda m: resized(m, (0, 2), (3, 4, 5), (6, 8, 10)), "empty"),
        case("special", lambda m: special(resized(m, (1, 1), (2, 3, 4), (4, 6, 8)), "grad_output")),
    )


def _errors(op: str) -> tuple[Sample, ...]:
    right = sample("right", lambda m: resized(m, (2, 3), (4, 5), (8, 10)), op=op)
    return (
        right.but("wrong_grad_shape", input_size=[2, 3, 4]),
        right.but("wrong_channels", input_size=[2, 4, 4, 5]),
        right.but("wrong_output_size", output_size=[8, 11]),
        right.but("no_input", input_size=[2, 3, 0, 5]),
        right.but("integers", align_corners=True, dtypes=(torch.int64,)),
    )


def _bench(name: str, op: str, *arguments: Any, stored: Any = dict) -> Sample:
    dtypes = (torch.float16, torch.float32)
    return sample(name, lambda m: stored(resized(m, *arguments)), op=op, dtypes=dtypes)


def _composed(
    grad_output: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    **scales: float | None,
) -> Tensor:
    factors = list(scales.values())

    def forward(unit: Tensor, number: int) -> Tensor:
        out = [output_size[number]]
        upsample = torch.ops.aten.upsample_linear1d
        found: Tensor = upsample(unit[None], out, align_corners, factors[number])[0]
        return found

    return transposed(grad_output, input_size[2:], forward)


SAMPLES = Samples(
    cases=(*_lines(LINEAR1), *_planes(LINEAR2), *_planes(CUBIC2), *_blocks(LINEAR3)),
    errors=(*_errors(LINEAR2), *_errors(CUBIC2)),
    bench=(
        _bench("wave_x256", LINEAR1, (8, 80), (86,), (22016,)),
        _bench("unet_x2", LINEAR2, (8, 256), (64, 64), (128, 128)),
        _bench("unet_x2_last", LINEAR2, (8, 256), (64, 64), (128, 128), stored=last),
        _bench("deeplab_head_513", LINEAR2, (8, 21), (129, 129), (513, 513)),
        _bench("deeplab_head_1025", LINEAR2, (2, 19), (129, 257), (1025, 2049), True),
        _bench("deeplab_pooling_last", LINEAR2, (8, 256), (1, 1), (65, 65), stored=last),
        _bench("pspnet_pooling", LINEAR2, (8, 512), (6, 6), (60, 60), True),
        _bench("super_resolution_x4", CUBIC2, (16, 3), (64, 64), (256, 256)),
        _bench("position_embedding", CUBIC2, (1, 768), (14, 14), (37, 37)),
        _bench("unet3d_x2", LINEAR3, (2, 128), (16, 32, 32), (32, 64, 64)),
        _bench("unet3d_x2_last", LINEAR3, (2, 128), (16, 32, 32), (32, 64, 64), stored=last),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
    references={
        **dict.fromkeys((LINEAR1, LINEAR2, LINEAR3), interpolation.backward(interpolation.linear)),
        CUBIC2: interpolation.backward(interpolation.cubic),
    },
    compositions={
        **dict.fromkeys((LINEAR1, LINEAR2, LINEAR3), _composed),
        CUBIC2: resized_planes(torch.ops.aten.upsample_bicubic2d),
    },
)
