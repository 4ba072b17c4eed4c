"""Samples of the backward of antialiased interpolation."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from detmode.table.conditions import FLOATING
from detmode.table.exact_interpolation import antialiased, backward, convolution, triangle
from detmode.table.inputs import LAYOUTS, last
from detmode.table.samples import Sample, Samples
from detmode.table.shared_samples import bench_resize, resize, special_gradient, wrong_resizes

LINEAR = "aten::_upsample_bilinear2d_aa_backward"
CUBIC = "aten::_upsample_bicubic2d_aa_backward"
LANCZOS = "aten::_upsample_lanczos2d_aa_backward"


def _cases(op: str) -> tuple[Sample, ...]:
    case, sums = partial(resize, op=op), partial(resize, op=op, covers="collisions")
    return (
        sums("down", (2, 3), (17, 31), (5, 6), variants=(*LAYOUTS, "cpu", "mps")),
        sums("down_by_3", (2, 3), (15, 18), (5, 6)),
        sums("down_corners", (2, 3), (17, 31), (1, 6), True),
        sums("up", (2, 3), (5, 6), (11, 13)),
        case("up_corners", (2, 3), (5, 6), (11, 13), True),
        case("given_scales", (2, 2), (19, 8), (7, 5), False, 0.4, 0.65),
        sums("one_to_many", (2, 5), (1, 1), (33, 65)),
        case("many_to_one", (2, 2), (33, 65), (1, 1)),
        case("long", (1, 2), (6, 520), (3, 260)),
        case("odd", (1, 1), (63, 1000), (1, 63), covers="odd_sizes"),
        case("last_up", (2, 5), (1, 3), (9, 40), covers="channels_last", form=last),
        case("empty", (0, 3), (17, 31), (5, 6), covers="empty"),
        case("special", (1, 1), (9, 11), (4, 5), form=special_gradient),
    )


SAMPLES = Samples(
    cases=(
        *_cases(LINEAR),
        *_cases(CUBIC),
        resize(
            "down", (2, 3), (17, 31), (5, 6), op=LANCZOS, variants=("cpu",), dtypes=FLOATING[2:3]
        ),
    ),
    errors=(*wrong_resizes(LINEAR), *wrong_resizes(CUBIC)),
    bench=(
        bench_resize("photo_to_224", (16, 3), (480, 640), (224, 224), op=LINEAR),
        bench_resize("photo_to_224_last", (16, 3), (480, 640), (224, 224), form=last, op=LINEAR),
        bench_resize("features_half_last", (8, 256), (128, 128), (64, 64), form=last, op=LINEAR),
        bench_resize("downscale_x4", (16, 3), (512, 512), (128, 128), op=CUBIC),
        bench_resize("position_embedding", (1, 768), (37, 37), (14, 14), op=CUBIC),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
    references={
        LINEAR: backward(antialiased(triangle, 1)),
        CUBIC: backward(antialiased(lambda x: convolution(x, Fraction(-1, 2)), 2)),
    },
    unlike_magnitudes={CUBIC: "weights have both signs"},
)
