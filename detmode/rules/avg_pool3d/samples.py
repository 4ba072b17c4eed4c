"""Samples of 3-D average pooling's backward."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker, Sample, Samples

OP = "aten::avg_pool3d_backward"
INF, NAN = float("inf"), float("nan")


def _call(
    m: Maker,
    shape: tuple[int, ...],
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> dict[str, Any]:
    meta = torch.empty(shape, device="meta")
    pooled = F.avg_pool3d(meta, kernel_size, stride or None, padding, ceil_mode)
    return {
        "grad_output": m.normal(*pooled.shape).contiguous(memory_format=memory_format),
        "self": m.normal(*shape).contiguous(memory_format=memory_format),
        "kernel_size": list(kernel_size),
        "stride": list(stride),
        "padding": list(padding),
        "ceil_mode": ceil_mode,
        "count_include_pad": count_include_pad,
        "divisor_override": divisor_override,
    }


def _strided(m: Maker, shape: tuple[int, ...], *arguments: Any) -> dict[str, Any]:
    call = _call(m, shape, *arguments)
    for name in ("grad_output", "self"):
        call[name] = call[name].transpose(-1, -3).contiguous().transpose(-1, -3)
    return call


def _special(m: Maker, divisor: int | None = None) -> dict[str, Any]:
    values = [1.0, NAN, -0.0, 2.0, INF, -INF, INF, 1e-40, 6e-8, -0.0, -0.0, 3e38, 3e38, 3.0]
    call = _call(m, (1, 3, 9, 9), (3,), (1,), (1,), False, not divisor, divisor)
    call["grad_output"].view(-1)[: 8 * len(values) : 8] = m.tensor(values)
    return call


def _cut(m: Maker, name: str, *sizes: int) -> dict[str, Any]:
    call = _call(m, (2, 3, 6, 6, 6), (2,))
    return {**call, name: call[name][tuple(slice(size) for size in sizes)]}


def _with(m: Maker, **changed: Any) -> dict[str, Any]:
    return {**_call(m, (2, 3, 6, 6, 6), (2,)), **changed}


def _sample(name: str, make: Any, *covers: str) -> Sample:
    return Sample(name=name, op=OP, make=make, dtypes=FLOATING, covers=covers)


CL3D = torch.channels_last_3d


def _bench(name: str, *arguments: Any) -> Sample:
    return Sample(name=name, op=OP, make=lambda m: _call(m, *arguments), dtypes=FLOATING[:3])


SAMPLES = Samples(
    cases=(
        _sample("overlap", lambda m: _call(m, (2, 3, 6, 7, 8), (3,), (2,)), "collisions"),
        _sample("stride_1", lambda m: _call(m, (1, 2, 5, 6, 7), (3,), (1,)), "collisions"),
        _sample("same_size", lambda m: _call(m, (1, 2, 5, 6, 7), (3,), (1,), (1,)), "collisions"),
        _sample("apart", lambda m: _call(m, (2, 2, 6, 7, 9), (2,), (3,))),
        _sample("default_stride", lambda m: _call(m, (2, 2, 6, 7, 9), (2, 3, 2))),
        _sample(
            "unlike_axes", lambda m: _call(m, (2, 3, 4, 9, 7), (1, 4, 3), (1, 3, 2), (0, 2, 1))
        ),
        _sample("ceil", lambda m: _call(m, (1, 2, 6, 7, 8), (3,), (2,), (1,), True), "collisions"),
        _sample(
            "ceil_exclude_pad", lambda m: _call(m, (1, 2, 6, 7, 8), (3,), (2,), (1,), True, False)
        ),
        _sample("exclude_pad", lambda m: _call(m, (1, 2, 6, 7, 8), (3,), (2,), (1,), False, False)),
        _sample("divisor", lambda m: _call(m, (1, 2, 6, 7, 8), (3,), (2,), (1,), True, False, -5)),
        _sample("unbatched", lambda m: _call(m, (3, 6, 7, 8), (3,), (2,))),
        _sample("empty_batch", lambda m: _call(m, (0, 3, 6, 7, 8), (3,), (2,)), "empty"),
        _sample("special_values", _special),
        _sample("special_values_divisor", lambda m: _special(m, 27)),
        _sample("strided", lambda m: _strided(m, (2, 3, 6, 7, 8), (3,), (2,)), "non_contiguous"),
        _sample(
            "last",
            lambda m: _call(m, (2, 3, 6, 7, 8), (3,), (2,), memory_format=CL3D),
            "channels_last",
        ),
        _sample("odd", lambda m: _call(m, (1, 1, 1, 63, 1000), (1, 5, 7), (1, 3, 4)), "odd_sizes"),
        _sample(
            "odd_many", lambda m: _call(m, (1, 5, 1, 63, 1000), (1, 3, 4), (1, 2, 3)), "odd_sizes"
        ),
        Sample(
            name="mps", op=OP, make=lambda m: _call(m, (2, 3, 6, 7, 8), (3,), (2,)), device="mps"
        ),
    ),
    errors=(
        Sample(name="zero_divisor", op=OP, make=lambda m: _with(m, divisor_override=0)),
        Sample(name="zero_stride", op=OP, make=lambda m: _with(m, stride=[0])),
        Sample(name="two_kernel_sizes", op=OP, make=lambda m: _with(m, kernel_size=[2, 2])),
        Sample(name="two_strides", op=OP, make=lambda m: _with(m, stride=[2, 2])),
        Sample(name="two_paddings", op=OP, make=lambda m: _with(m, padding=[0, 0])),
        Sample(name="wide_padding", op=OP, make=lambda m: _with(m, padding=[2])),
        Sample(name="wide_kernel", op=OP, make=lambda m: _with(m, kernel_size=[7])),
        Sample(name="no_channels", op=OP, make=lambda m: _cut(m, "self", 2, 0)),
        Sample(name="no_rows", op=OP, make=lambda m: _cut(m, "self", 2, 3, 6, 0)),
        Sample(name="short_output", op=OP, make=lambda m: _cut(m, "grad_output", 2, 3, 2)),
        Sample(name="fewer_channels_out", op=OP, make=lambda m: _cut(m, "grad_output", 2, 2)),
        Sample(
            name="mixed_dtypes",
            op=OP,
            make=lambda m: _with(m, grad_output=m.normal(2, 3, 3, 3, 3, dtype=torch.float64)),
        ),
    ),
    bench=(
        _bench("unet3d_down", (2, 32, 128, 128, 128), (2,), (2,)),
        _bench("unet3d_overlap", (2, 32, 128, 128, 128), (3,), (2,), (1,)),
        _bench("slowfast_head", (8, 2048, 8, 7, 7), (8, 7, 7), (1,)),
        _bench("i3d_head", (8, 1024, 8, 7, 7), (2, 7, 7), (1,)),
        _bench("densenet3d_transition", (8, 256, 8, 28, 28), (2,), (2,)),
        _bench("inception3d_branch", (8, 192, 16, 28, 28), (3,), (1,), (1,)),
        _bench("same_exclude_pad", (8, 64, 16, 56, 56), (3,), (1,), (1,), False, False),
        _bench("video_spatial", (8, 64, 16, 112, 112), (1, 3, 3), (1, 2, 2), (0, 1, 1)),
    ),
    not_applicable={"negative_dim": "the operator takes no dimension"},
)
