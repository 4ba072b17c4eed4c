"""Samples of the backward of antialiased interpolation."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch

from detmode.rules.upsample import reference
from detmode.rules.upsample.samples import backward, last, special, strided, wrong
from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker, Sample, Samples

OPS = ("aten::_upsample_bilinear2d_aa_backward", "aten::_upsample_bicubic2d_aa_backward")

Make = Callable[[Maker], dict[str, Any]]
_MAKERS: tuple[tuple[str, str, Make], ...] = (
    ("down", "collisions", lambda m: backward(m, (2, 3), (17, 31), (5, 6))),
    ("down_by_3", "collisions", lambda m: backward(m, (2, 3), (15, 18), (5, 6))),
    ("down_corners", "collisions", lambda m: backward(m, (2, 3), (17, 31), (1, 6), True)),
    ("up", "collisions", lambda m: backward(m, (2, 3), (5, 6), (11, 13))),
    ("up_corners", "", lambda m: backward(m, (2, 3), (5, 6), (11, 13), True)),
    ("given_scales", "", lambda m: backward(m, (2, 2), (19, 8), (7, 5), False, 0.4, 0.65)),
    ("one_to_many", "collisions", lambda m: backward(m, (2, 5), (1, 1), (33, 65))),
    ("many_to_one", "", lambda m: backward(m, (2, 2), (33, 65), (1, 1))),
    ("odd", "odd_sizes", lambda m: backward(m, (1, 1), (63, 1000), (1, 63))),
    ("last", "channels_last", lambda m: last(backward(m, (2, 5), (17, 31), (5, 6)))),
    ("last_up", "channels_last", lambda m: last(backward(m, (2, 5), (1, 3), (9, 40)))),
    ("strided", "non_contiguous", lambda m: strided(backward(m, (2, 3), (17, 31), (5, 6)))),
    ("empty", "empty", lambda m: backward(m, (0, 3), (17, 31), (5, 6))),
    ("special", "", lambda m: special(m, (1, 1), (9, 11), (4, 5))),
)
_LANCZOS = tuple(
    Sample(
        name="host" if device == "cpu" else device,
        op="aten::_upsample_lanczos2d_aa_backward",
        make=_MAKERS[0][2],
        device=device,
    )
    for device in ("cpu", "cuda")
)
_OTHERS = _LANCZOS + tuple(
    Sample(name="host" if device == "cpu" else device, op=op, make=_MAKERS[0][2], device=device)
    for device in ("cpu", "mps")
    for op in OPS
)


def _bench(op: int, name: str, *arguments: Any, channels_last: bool = False) -> Sample:
    def make(m: Maker) -> dict[str, Any]:
        given = backward(m, *arguments)
        return last(given) if channels_last else given

    return Sample(name=name, op=OPS[op], make=make, dtypes=(torch.float16, torch.float32))


SAMPLES = Samples(
    cases=_OTHERS
    + tuple(
        Sample(name=name, op=op, make=make, dtypes=FLOATING, covers=tuple(covers.split()))
        for name, covers, make in _MAKERS
        for op in OPS
    ),
    errors=tuple(
        Sample(name=name, op=op, make=make, dtypes=dtypes)
        for op in OPS
        for name, make, dtypes in (
            ("wrong_grad_shape", wrong("input_size", [2, 3, 4]), (torch.float32,)),
            ("wrong_channels", wrong("input_size", [2, 4, 4, 5]), (torch.float32,)),
            ("wrong_output_size", wrong("output_size", [8, 11]), (torch.float32,)),
            ("no_input", wrong("input_size", [2, 3, 0, 5]), (torch.float32,)),
            ("integers", wrong("align_corners", True), (torch.int64,)),
        )
    ),
    bench=(
        _bench(0, "photo_to_224", (16, 3), (480, 640), (224, 224)),
        _bench(0, "photo_to_224_last", (16, 3), (480, 640), (224, 224), channels_last=True),
        _bench(0, "features_half_last", (8, 256), (128, 128), (64, 64), channels_last=True),
        _bench(1, "downscale_x4", (16, 3), (512, 512), (128, 128)),
        _bench(1, "position_embedding", (1, 768), (37, 37), (14, 14)),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
    references={
        OPS[0]: reference.backward(reference.antialiased(reference.triangle, 1)),
        OPS[1]: reference.backward(
            reference.antialiased(lambda x: reference.convolution(x, Fraction(-1, 2)), 2)
        ),
    },
)
