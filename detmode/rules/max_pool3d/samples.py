"""Samples of the backward of max pooling."""

from __future__ import annotations

from typing import Any

import torch

from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker, Sample

OP2D = "aten::max_pool2d_with_indices_backward"
OP = "aten::max_pool3d_with_indices_backward"
INF, NAN = float("inf"), float("nan")

NOT_APPLICABLE: dict[str, str] = {"negative_dim": "the operator takes no dimension"}


def _call(
    m: Maker,
    shape: tuple[int, ...],
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    dilation: tuple[int, ...] = (1,),
    ceil_mode: bool = False,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> dict[str, Any]:
    # Small integers: windows have ties, and some elements are chosen by many windows.
    self = m.integers(-3, 4, *shape, dtype=m.dtype)
    window = {
        "kernel_size": list(kernel_size),
        "stride": list(stride),
        "padding": list(padding),
        "dilation": list(dilation),
        "ceil_mode": ceil_mode,
    }
    pool = torch.ops.aten.max_pool3d_with_indices
    indices = pool(self.cpu().double(), **window)[1].to(m.device)
    return {
        "grad_output": m.normal(*indices.shape).contiguous(memory_format=memory_format),
        "self": self.contiguous(memory_format=memory_format),
        **window,
        "indices": indices.contiguous(memory_format=memory_format),
    }


def _planar(m: Maker) -> dict[str, Any]:
    call = _call(m, (2, 3, 1, 5, 6), (1, 3, 3), (1,), (0, 1, 1))
    for name in ("grad_output", "self", "indices"):
        call[name] = call[name].squeeze(2)
    for name in ("kernel_size", "stride", "padding", "dilation"):
        call[name] = {"kernel_size": [3, 3], "padding": [1, 1]}.get(name, [1, 1])
    return call


def _strided(m: Maker, shape: tuple[int, ...], *arguments: Any) -> dict[str, Any]:
    call = _call(m, shape, *arguments)
    for name in ("grad_output", "self", "indices"):
        call[name] = call[name].transpose(-1, -3).contiguous().transpose(-1, -3)
    return call


def _special(m: Maker) -> dict[str, Any]:
    values = [1.0, NAN, -0.0, 2.0, INF, -INF, INF, 1e-40, 6e-8, -0.0, -0.0, 3e38, 3e38, 3.0]
    call = _call(m, (1, 3, 9, 9), (3,), (1,), (1,))
    call["grad_output"].view(-1)[: 8 * len(values) : 8] = m.tensor(values)
    return call


def _cut(m: Maker, name: str, *sizes: int) -> dict[str, Any]:
    call = _call(m, (2, 3, 6, 6, 6), (2,))
    return {**call, name: call[name][tuple(slice(size) for size in sizes)]}


def _with(m: Maker, **changed: Any) -> dict[str, Any]:
    return {**_call(m, (2, 3, 6, 6, 6), (2,)), **changed}


def _sample(name: str, make: Any, *covers: str) -> Sample:
    return Sample(name=name, op=OP, make=make, dtypes=FLOATING, covers=covers)


def _plain(name: str, op: str, make: Any, device: str) -> Sample:
    return Sample(name=name, op=op, make=make, device=device)


CL3D = torch.channels_last_3d
SAMPLES: tuple[Sample, ...] = (
    _sample("overlap", lambda m: _call(m, (2, 3, 6, 7, 8), (3,), (2,), (1,)), "collisions"),
    _sample("stride_1", lambda m: _call(m, (1, 2, 5, 6, 7), (3,), (1,), (1,)), "collisions"),
    _sample("apart", lambda m: _call(m, (2, 2, 6, 7, 9), (2,), (3,))),
    _sample("default_stride", lambda m: _call(m, (2, 2, 6, 7, 9), (2, 3, 2))),
    _sample("unlike_axes", lambda m: _call(m, (2, 3, 4, 9, 7), (1, 4, 3), (1, 3, 2), (0, 2, 1))),
    _sample("dilated", lambda m: _call(m, (1, 2, 7, 8, 9), (3,), (1,), (1,), (2,)), "collisions"),
    _sample(
        "dilated_unlike",
        lambda m: _call(m, (1, 2, 9, 14, 13), (2, 3, 3), (3, 4, 2), (1, 0, 1), (2, 6, 3)),
    ),
    _sample("ceil", lambda m: _call(m, (1, 2, 6, 7, 8), (3,), (2,), (1,), (1,), True)),
    _sample("unbatched", lambda m: _call(m, (3, 6, 7, 8), (3,), (2,))),
    _sample("empty_batch", lambda m: _call(m, (0, 3, 6, 7, 8), (3,), (2,)), "empty"),
    _sample("special_values", _special),
    _sample("strided", lambda m: _strided(m, (2, 3, 6, 7, 8), (3,), (2,)), "non_contiguous"),
    _sample("strided_unbatched", lambda m: _strided(m, (3, 6, 7, 8), (3,), (2,)), "non_contiguous"),
    _sample(
        "last",
        lambda m: _call(m, (2, 5, 6, 7, 8), (3,), (2,), memory_format=CL3D),
        "channels_last",
    ),
    _sample(
        "last_many",
        lambda m: _call(m, (1, 18, 1, 121, 122), (1, 3, 3), (2,), memory_format=CL3D),
        "channels_last",
    ),
    _sample("odd", lambda m: _call(m, (1, 1, 1, 63, 1000), (1, 5, 7), (1, 3, 4)), "odd_sizes"),
    _sample("odd_many", lambda m: _call(m, (1, 17, 1, 17, 991), (1, 3, 4), (2,)), "odd_sizes"),
    _plain("metal", OP, lambda m: _call(m, (2, 3, 5, 4, 6), (3,), (1,)), "mps"),
    _plain("host", OP, lambda m: _call(m, (2, 3, 5, 4, 6), (3,), (1,)), "cpu"),
    _plain("overlapping_windows", OP2D, _planar, "cuda"),
    _plain("metal", OP2D, _planar, "mps"),
)


def _error(name: str, make: Any, dtype: torch.dtype = torch.float32) -> Sample:
    return Sample(name=name, op=OP, make=make, dtypes=(dtype,))


ERRORS: tuple[Sample, ...] = (
    _error("zero_stride", lambda m: _with(m, stride=[0])),
    _error("zero_dilation", lambda m: _with(m, dilation=[0])),
    _error("two_kernel_sizes", lambda m: _with(m, kernel_size=[2, 2])),
    _error("two_strides", lambda m: _with(m, stride=[2, 2])),
    _error("two_paddings", lambda m: _with(m, padding=[0, 0])),
    _error("two_dilations", lambda m: _with(m, dilation=[1, 1])),
    _error("wide_padding", lambda m: _with(m, padding=[2])),
    _error("no_channels", lambda m: _cut(m, "self", 2, 0)),
    _error("no_rows", lambda m: _cut(m, "self", 2, 3, 6, 0)),
    _error("fewer_channels_out", lambda m: _cut(m, "grad_output", 2, 2)),
    _error("fewer_indices", lambda m: _cut(m, "indices", 2, 3, 2)),
    _error("narrow_indices", lambda m: _with(m, indices=m.integers(0, 9, 2, 3, 3, 3, 3).int())),
    _error("mixed_dtypes", lambda m: _with(m, grad_output=m.normal(2, 3, 3, 3, 3).double())),
    _error("integers", lambda m: _with(m), torch.int64),
)


def _bench(name: str, *arguments: Any) -> Sample:
    return Sample(name=name, op=OP, make=lambda m: _call(m, *arguments), dtypes=FLOATING[:3])


BENCH: tuple[Sample, ...] = (
    _bench("unet3d_down", (2, 32, 128, 128, 128), (2,), (2,)),
    _bench("resnet3d_stem", (8, 64, 8, 112, 112), (3,), (2,), (1,)),
    _bench("slowfast_stem", (8, 64, 8, 112, 112), (1, 3, 3), (1, 2, 2), (0, 1, 1)),
    _bench("i3d_branch", (8, 192, 16, 28, 28), (3,), (1,), (1,)),
    _bench(
        "i3d_stem_last", (8, 64, 16, 112, 112), (1, 3, 3), (1, 2, 2), (0, 1, 1), (1,), True, CL3D
    ),
)
