"""Samples of the backward of antialiased interpolation."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import torch

from detmode.table.compositions import resized_planes
from detmode.table.conditions import FLOATING
from detmode.table.inputs import LAYOUTS, last, resized, special
from detmode.table.interpolation import antialiased, backward, convolution, triangle
from detmode.table.samples import Sample, Samples, sample

LINEAR = "aten::_upsample_bilinear2d_aa_backward"
CUBIC = "aten::_upsample_bicubic2d_aa_backward"
LANCZOS = "aten::_upsample_lanczos2d_aa_backward"


def _cases(op: str) -> tuple[Sample, ...]:
    case = partial(sample, op=op, dtypes=FLOATING)
    return (
        case(
            "down",
            lambda m: resized(m, (2, 3), (17, 31), (5, 6)),
            "collisions",
            variants=(*LAYOUTS, "cpu", "mps"),
        ),
        case("down_by_3", lambda m: resized(m, (2, 3), (15, 18), (5, 6)), "collisions"),
        case("down_corners", lambda m: resized(m, (2, 3), (17, 31), (1, 6), True), "collisions"),
        case("up", lambda m: resized(m, (2, 3), (5, 6), (11, 13)), "collisions"),
        case("up_corners", lambda m: resized(m, (2, 3), (5, 6), (11, 13), True)),
        case("given_scales", lambda m: resized(m, (2, 2), (19, 8), (7, 5), False, 0.4, 0.65)),
        case("one_to_many", lambda m: resized(m, (2, 5), (1, 1), (33, 65)), "collisions"),
        case("many_to_one", lambda m: resized(m, (2, 2), (33, 65), (1, 1))),
        case("odd", lambda m: resized(m, (1, 1), (63, 1000), (1, 63)), "odd_sizes"),
        case("last_up", lambda m: last(resized(m, (2, 5), (1, 3), (9, 40))), "channels_last"),
        case("empty", lambda m: resized(m, (0, 3), (17, 31), (5, 6)), "empty"),
        case("special", lambda m: special(resized(m, (1, 1), (9, 11), (4, 5)), "grad_output")),
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


SAMPLES = Samples(
    cases=(
        *_cases(LINEAR),
        *_cases(CUBIC),
        sample(
            "down",
            lambda m: resized(m, (2, 3), (17, 31), (5, 6)),
            op=LANCZOS,
            variants=("cpu",),
        ),
    ),
    errors=(*_errors(LINEAR), *_errors(CUBIC)),
    bench=(
        _bench("photo_to_224", LINEAR, (16, 3), (480, 640), (224, 224)),
        _bench("photo_to_224_last", LINEAR, (16, 3), (480, 640), (224, 224), stored=last),
        _bench("features_half_last", LINEAR, (8, 256), (128, 128), (64, 64), stored=last),
        _bench("downscale_x4", CUBIC, (16, 3), (512, 512), (128, 128)),
        _bench("position_embedding", CUBIC, (1, 768), (37, 37), (14, 14)),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
    references={
        LINEAR: backward(antialiased(triangle, 1)),
        CUBIC: backward(antialiased(lambda x: convolution(x, Fraction(-1, 2)), 2)),
    },
    compositions={
        LINEAR: resized_planes(torch.ops.aten._upsample_bilinear2d_aa),
        CUBIC: resized_planes(torch.ops.aten._upsample_bicubic2d_aa),
    },
)
