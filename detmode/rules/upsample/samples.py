"""Samples of the backward of linear and cubic interpolation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan
from typing import Any

import torch

from detmode.rules.upsample import reference
from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker, Sample, Samples

OPS = {
    1: ("aten::upsample_linear1d_backward",),
    2: ("aten::upsample_bilinear2d_backward", "aten::upsample_bicubic2d_backward"),
    3: ("aten::upsample_trilinear3d_backward",),
}
LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def backward(
    make: Maker,
    batch: Sequence[int],
    size: Sequence[int],
    out: Sequence[int],
    align_corners: bool = False,
    *scales: float | None,
) -> dict[str, Any]:
    """The arguments for a resize of ``size`` to ``out`` with ``batch`` (N, C) before."""
    names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}
    return {
        "grad_output": make.normal(*batch, *out),
        "output_size": list(out),
        "input_size": [*batch, *size],
        "align_corners": align_corners,
        **dict(zip(names[len(size)], scales)),
    }


def strided(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same with grad_output stored back to front."""
    grad = arguments["grad_output"]
    back = tuple(reversed(range(grad.dim())))
    return {**arguments, "grad_output": grad.permute(back).contiguous().permute(back)}


def last(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same with grad_output in channels_last."""
    grad = arguments["grad_output"]
    return {**arguments, "grad_output": grad.contiguous(memory_format=LAST[grad.dim() - 2])}


def special(make: Maker, *arguments: Any) -> dict[str, Any]:
    """Values that not every sum keeps."""
    given = backward(make, *arguments)
    given["grad_output"].view(-1)[1:14:2] = make.tensor([nan, 1.0, inf, 2.0, -inf, -0.0, 1e-40])
    return given


def wrong(change: str, value: Any) -> Callable[[Maker], dict[str, Any]]:
    """A 2-D resize with one argument that ATen rejects."""
    return lambda m: {**backward(m, (2, 3), (4, 5), (8, 10)), change: value}


Make = Callable[[Maker], dict[str, Any]]
_MAKERS: tuple[tuple[int, str, str, Make], ...] = (
    (1, "up", "collisions", lambda m: backward(m, (2, 3), (7,), (29,))),
    (1, "corners", "", lambda m: backward(m, (2, 3), (7,), (29,), True)),
    (1, "down", "", lambda m: backward(m, (2, 3), (29,), (7,))),
    (1, "one_to_many", "collisions odd_sizes", lambda m: backward(m, (2, 2), (1,), (1000,))),
    (1, "odd", "odd_sizes", lambda m: backward(m, (1, 2), (1000,), (63,))),
    (1, "given_scale", "", lambda m: backward(m, (2, 3), (8,), (19,), False, 2.4)),
    (1, "strided", "non_contiguous", lambda m: strided(backward(m, (2, 3), (8,), (19,)))),
    (1, "empty", "empty", lambda m: backward(m, (0, 3), (8,), (16,))),
    (1, "special", "", lambda m: special(m, (1, 1), (8,), (16,))),
    (2, "up", "collisions", lambda m: backward(m, (2, 3), (5, 6), (10, 12))),
    (2, "corners", "collisions", lambda m: backward(m, (2, 3), (5, 6), (17, 31), True)),
    (2, "down", "", lambda m: backward(m, (2, 3), (17, 31), (5, 6))),
    (2, "down_corners", "", lambda m: backward(m, (2, 3), (17, 31), (1, 6), True)),
    (2, "given_scales", "", lambda m: backward(m, (2, 2), (8, 9), (19, 5), False, 2.4, 0.6)),
    (2, "one_to_many", "collisions", lambda m: backward(m, (2, 5), (1, 1), (33, 65))),
    (2, "last_one_to_many", "collisions", lambda m: last(backward(m, (2, 5), (1, 2), (33, 64)))),
    (2, "odd", "odd_sizes", lambda m: backward(m, (1, 1), (63, 1), (1, 1000))),
    (2, "last", "channels_last", lambda m: last(backward(m, (2, 5), (5, 6), (10, 12)))),
    (2, "strided", "non_contiguous", lambda m: strided(backward(m, (2, 3), (5, 6), (11, 13)))),
    (2, "empty", "empty", lambda m: backward(m, (0, 3), (5, 6), (10, 12))),
    (2, "special", "", lambda m: special(m, (1, 1), (4, 5), (8, 10))),
    (3, "up", "collisions", lambda m: backward(m, (2, 2), (3, 4, 5), (6, 8, 10))),
    (3, "corners", "", lambda m: backward(m, (1, 2), (3, 4, 5), (5, 9, 13), True)),
    (3, "down", "", lambda m: backward(m, (1, 2), (5, 9, 13), (3, 4, 5))),
    (3, "one_to_many", "collisions", lambda m: backward(m, (1, 3), (1, 1, 2), (5, 9, 12))),
    (3, "odd", "odd_sizes", lambda m: backward(m, (1, 1), (1, 63, 2), (2, 1, 1000))),
    (3, "last", "channels_last", lambda m: last(backward(m, (2, 3), (3, 4, 5), (6, 8, 10)))),
    (3, "last_one_to_many", "", lambda m: last(backward(m, (1, 3), (1, 1, 2), (5, 9, 12)))),
    (3, "strided", "non_contiguous", lambda m: strided(backward(m, (1, 2), (3, 4, 5), (6, 7, 9)))),
    (3, "empty", "empty", lambda m: backward(m, (0, 2), (3, 4, 5), (6, 8, 10))),
    (3, "special", "", lambda m: special(m, (1, 1), (2, 3, 4), (4, 6, 8))),
)
_OTHERS = tuple(
    Sample(name="host" if device == "cpu" else device, op=op, make=make, device=device)
    for device in ("cpu", "mps")
    for dims, name, _, make in _MAKERS
    for op in OPS[dims]
    if name == "up"
)


def _bench(dims: int, op: int, name: str, *arguments: Any, channels_last: bool = False) -> Sample:
    def make(m: Maker) -> dict[str, Any]:
        given = backward(m, *arguments)
        return last(given) if channels_last else given

    return Sample(name=name, op=OPS[dims][op], make=make, dtypes=(torch.float16, torch.float32))


SAMPLES = Samples(
    cases=_OTHERS
    + tuple(
        Sample(name=name, op=op, make=make, dtypes=FLOATING, covers=tuple(covers.split()))
        for dims, name, covers, make in _MAKERS
        for op in OPS[dims]
    ),
    errors=tuple(
        Sample(name=name, op=op, make=make, dtypes=dtypes)
        for op in OPS[2]
        for name, make, dtypes in (
            ("wrong_grad_shape", wrong("input_size", [2, 3, 4]), (torch.float32,)),
            ("wrong_channels", wrong("input_size", [2, 4, 4, 5]), (torch.float32,)),
            ("wrong_output_size", wrong("output_size", [8, 11]), (torch.float32,)),
            ("no_input", wrong("input_size", [2, 3, 0, 5]), (torch.float32,)),
            ("integers", wrong("align_corners", True), (torch.int64,)),
        )
    ),
    bench=(
        _bench(1, 0, "wave_x256", (8, 80), (86,), (22016,)),
        _bench(2, 0, "unet_x2", (8, 256), (64, 64), (128, 128)),
        _bench(2, 0, "unet_x2_last", (8, 256), (64, 64), (128, 128), channels_last=True),
        _bench(2, 0, "deeplab_head_513", (8, 21), (129, 129), (513, 513)),
        _bench(2, 0, "deeplab_head_1025", (2, 19), (129, 257), (1025, 2049), True),
        _bench(2, 0, "deeplab_pooling_last", (8, 256), (1, 1), (65, 65), channels_last=True),
        _bench(2, 0, "pspnet_pooling", (8, 512), (6, 6), (60, 60), True),
        _bench(2, 1, "super_resolution_x4", (16, 3), (64, 64), (256, 256)),
        _bench(2, 1, "position_embedding", (1, 768), (14, 14), (37, 37)),
        _bench(3, 0, "unet3d_x2", (2, 128), (16, 32, 32), (32, 64, 64)),
        _bench(3, 0, "unet3d_x2_last", (2, 128), (16, 32, 32), (32, 64, 64), channels_last=True),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
    references={
        op: reference.backward(reference.cubic if "bicubic" in op else reference.linear)
        for ops in OPS.values()
        for op in ops
    },
)
