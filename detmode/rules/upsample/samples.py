"""Samples of the backward of linear and cubic interpolation."""

from __future__ import annotations

from functools import partial

from detmode.table.exact_interpolation import backward, cubic, linear
from detmode.table.inputs import LAYOUTS, last
from detmode.table.samples import Sample, Samples
from detmode.table.shared_samples import bench_resize, resize, special_gradient, wrong_resizes

LINEAR1, LINEAR2 = "aten::upsample_linear1d_backward", "aten::upsample_bilinear2d_backward"
CUBIC2, LINEAR3 = "aten::upsample_bicubic2d_backward", "aten::upsample_trilinear3d_backward"
DEVICES = ("cpu", "mps")


_line, _block = partial(resize, op=LINEAR1), partial(resize, op=LINEAR3)
_LINES = (
    _line("up", (2, 3), (7,), (29,), covers="collisions", variants=DEVICES),
    _line("corners", (2, 3), (7,), (29,), True),
    _line("down", (2, 3), (29,), (7,)),
    _line("one_to_many", (2, 2), (1,), (1000,), covers="collisions odd_sizes"),
    _line("one_to_very_many", (1, 2), (1,), (2100,), covers="collisions"),
    _line("odd", (1, 2), (1000,), (63,), covers="odd_sizes"),
    _line("given_scale", (2, 3), (8,), (19,), False, 2.4, variants=LAYOUTS[:1]),
    _line("empty", (0, 3), (8,), (16,), covers="empty"),
    _line("special", (1, 1), (8,), (16,), form=special_gradient),
)


def _planes(op: str) -> tuple[Sample, ...]:
    case, sums = partial(resize, op=op), partial(resize, op=op, covers="collisions")
    return (
        sums("up", (2, 5), (5, 6), (10, 12), variants=(*LAYOUTS, *DEVICES)),
        sums("corners", (2, 3), (5, 6), (17, 31), True),
        case("down", (2, 3), (17, 31), (5, 6)),
        case("down_corners", (2, 3), (17, 31), (1, 6), True),
        case("given_scales", (2, 2), (8, 9), (19, 5), False, 2.4, 0.6),
        sums("one_to_many", (2, 5), (1, 1), (33, 65)),
        case("last", (2, 5), (1, 2), (33, 64), covers="channels_last", form=last),
        # Rows whose tables are too long for a block's shared memory.
        case("long", (1, 2), (3, 260), (6, 520)),
        case("long_last", (1, 2), (3, 260), (6, 520), covers="channels_last", form=last),
        case("odd", (1, 1), (63, 1), (1, 1000), covers="odd_sizes"),
        case("empty", (0, 3), (5, 6), (10, 12), covers="empty"),
        case("special", (1, 1), (4, 5), (8, 10), form=special_gradient),
    )


_shared = partial(_block, covers="collisions")
_BLOCKS = (
    _shared("up", (2, 3), (3, 4, 5), (6, 8, 10), variants=(*LAYOUTS, *DEVICES)),
    _block("corners", (1, 2), (3, 4, 5), (5, 9, 13), True),
    _block("down", (1, 2), (5, 9, 13), (3, 4, 5)),
    _shared("one_to_many", (1, 3), (1, 1, 2), (5, 9, 12), variants=LAYOUTS[1:]),
    _block("long", (1, 2), (2, 3, 260), (4, 6, 520), variants=LAYOUTS[1:]),
    _block("odd", (1, 1), (1, 63, 2), (2, 1, 1000), covers="odd_sizes"),
    _block("empty", (0, 2), (3, 4, 5), (6, 8, 10), covers="empty"),
    _block("special", (1, 1), (2, 3, 4), (4, 6, 8), form=special_gradient),
)


SAMPLES = Samples(
    cases=(*_LINES, *_planes(LINEAR2), *_planes(CUBIC2), *_BLOCKS),
    errors=(*wrong_resizes(LINEAR2), *wrong_resizes(CUBIC2)),
    bench=(
        bench_resize("wave_x256", (8, 80), (86,), (22016,), op=LINEAR1),
        bench_resize("unet_x2", (8, 256), (64, 64), (128, 128), op=LINEAR2),
        bench_resize("unet_x2_last", (8, 256), (64, 64), (128, 128), form=last, op=LINEAR2),
        bench_resize("deeplab_head_513", (8, 21), (129, 129), (513, 513), op=LINEAR2),
        bench_resize("deeplab_head_1025", (2, 19), (129, 257), (1025, 2049), True, op=LINEAR2),
        bench_resize("deeplab_pooling_last", (8, 256), (1, 1), (65, 65), form=last, op=LINEAR2),
        bench_resize("pspnet_pooling", (8, 512), (6, 6), (60, 60), True, op=LINEAR2),
        bench_resize("super_resolution_x4", (16, 3), (64, 64), (256, 256), op=CUBIC2),
        bench_resize("position_embedding", (1, 768), (14, 14), (37, 37), op=CUBIC2),
        bench_resize("unet3d_x2", (2, 128), (16, 32, 32), (32, 64, 64), op=LINEAR3),
        bench_resize("unet3d_x2_last", (2, 128), (16, 32, 32), (32, 64, 64), form=last, op=LINEAR3),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
    references={
        **dict.fromkeys((LINEAR1, LINEAR2, LINEAR3), backward(linear)),
        CUBIC2: backward(cubic),
    },
    unlike_magnitudes={
        CUBIC2: "weights have both signs",
        # By the CPU, ATen has it or not.
        **dict.fromkeys((LINEAR1, LINEAR2, LINEAR3), "a weight of 0 may be a position's rounding"),
    },
)
