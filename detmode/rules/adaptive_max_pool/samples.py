"""Samples of the backward of adaptive max pooling."""

from __future__ import annotations

from typing import Any

import torch

from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker, Sample, Samples

OP2D = "aten::adaptive_max_pool2d_backward"
OP3D = "aten::adaptive_max_pool3d_backward"
INF, NAN = float("inf"), float("nan")


def _call(
    m: Maker,
    leading: tuple[int, ...],
    size_in: tuple[int, ...],
    size_out: tuple[int, ...],
    memory_format: torch.memory_format = torch.contiguous_format,
) -> dict[str, Any]:
    # Small integers: windows have ties, and some elements are chosen by many windows.
    self = m.integers(-3, 4, *leading, *size_in, dtype=m.dtype)
    if self.numel():
        pool = getattr(torch.ops.aten, f"adaptive_max_pool{len(size_in)}d")
        indices = pool(self.cpu().double(), size_out)[1].to(m.device)
    else:
        indices = m.integers(0, 1, *leading, *size_out)
    if len(size_in) == 2:
        # In 3-D the forward gives contiguous indices, and ATen's backward takes them as such.
        indices = indices.contiguous(memory_format=memory_format)
    return {
        "grad_output": m.normal(*leading, *size_out).contiguous(memory_format=memory_format),
        "self": self.contiguous(memory_format=memory_format),
        "indices": indices,
    }


def _strided(m: Maker, *arguments: Any) -> dict[str, Any]:
    call = _call(m, *arguments)
    return {
        name: tensor.transpose(-1, 0).contiguous().transpose(-1, 0) for name, tensor in call.items()
    }


def _special(m: Maker) -> dict[str, Any]:
    call = _call(m, (1,), (7, 6), (3, 4))
    values = [[1.0, NAN, -0.0, 2.0], [INF, -INF, INF, 1e-40], [-0.0, -0.0, 6e-8, -1e-39]]
    return {**call, "grad_output": m.tensor([values])}


def _cut(m: Maker, op: str, name: str, *sizes: int) -> dict[str, Any]:
    axes = int(op == OP3D) + 2
    call = _call(m, (2, 3), (5,) * axes, (2,) * axes)
    return {**call, name: call[name][tuple(slice(size) for size in sizes)]}


def _with(m: Maker, op: str, **changed: Any) -> dict[str, Any]:
    return {**_cut(m, op, "self"), **changed}


def _sample(name: str, op: str, make: Any, *covers: str, device: str = "cuda") -> Sample:
    return Sample(name=name, op=op, make=make, dtypes=FLOATING, covers=covers, device=device)


def _last2d(m: Maker) -> dict[str, Any]:
    return _call(m, (2, 18), (89, 91), (7, 6), CL)


CL, CL3D = torch.channels_last, torch.channels_last_3d


def _error(name: str, op: str, make: Any, dtype: torch.dtype = torch.float32) -> Sample:
    return Sample(name=name, op=op, make=make, dtypes=(dtype,))


def _bench(name: str, op: str, *shape: Any) -> Sample:
    return Sample(name=name, op=op, make=lambda m: _call(m, *shape), dtypes=FLOATING[:3])


SAMPLES = Samples(
    cases=(
        _sample("overlap", OP2D, lambda m: _call(m, (2, 3), (11, 13), (7, 8)), "collisions"),
        _sample("upsampling", OP2D, lambda m: _call(m, (2, 3), (3, 2), (16, 21)), "collisions"),
        _sample("divisible", OP2D, lambda m: _call(m, (3, 2), (12, 8), (4, 2))),
        _sample("identity", OP2D, lambda m: _call(m, (2, 5), (7, 7), (7, 7))),
        _sample("whole", OP2D, lambda m: _call(m, (2, 5), (7, 6), (1, 1))),
        _sample("one_dimensional", OP2D, lambda m: _call(m, (2, 4), (1, 63), (1, 10))),
        _sample("unbatched", OP2D, lambda m: _call(m, (5,), (9, 10), (4, 3))),
        _sample("empty_batch", OP2D, lambda m: _call(m, (0, 3), (9, 10), (4, 3)), "empty"),
        _sample("special_values", OP2D, _special),
        _sample("strided", OP2D, lambda m: _strided(m, (2, 3), (9, 10), (4, 3)), "non_contiguous"),
        _sample("last", OP2D, lambda m: _call(m, (2, 5), (9, 10), (4, 3), CL), "channels_last"),
        _sample("last_many", OP2D, _last2d, "channels_last"),
        _sample("odd", OP2D, lambda m: _call(m, (1, 1), (63, 1000), (10, 63)), "odd_sizes"),
        _sample("odd_many", OP2D, lambda m: _call(m, (3, 7), (13, 1000), (7, 63)), "odd_sizes"),
        _sample("overlap", OP3D, lambda m: _call(m, (2, 3), (5, 7, 4), (3, 4, 3)), "collisions"),
        _sample("upsampling", OP3D, lambda m: _call(m, (1, 2), (2, 3, 4), (5, 5, 5)), "collisions"),
        _sample("even_windows", OP3D, lambda m: _call(m, (1, 2), (4, 6, 8), (2, 3, 4))),
        _sample("unbatched", OP3D, lambda m: _call(m, (3,), (4, 5, 6), (3, 2, 4))),
        _sample("empty_batch", OP3D, lambda m: _call(m, (0, 3), (4, 5, 6), (3, 2, 4)), "empty"),
        _sample(
            "last", OP3D, lambda m: _call(m, (2, 5), (4, 5, 6), (3, 2, 4), CL3D), "channels_last"
        ),
        _sample(
            "odd_many", OP3D, lambda m: _call(m, (1, 17), (1, 31, 500), (1, 8, 7)), "odd_sizes"
        ),
        _sample("metal", OP2D, lambda m: _call(m, (2, 3), (7, 5), (3, 3)), device="mps"),
        _sample("host", OP2D, lambda m: _call(m, (2, 3), (7, 5), (3, 3)), device="cpu"),
    ),
    errors=(
        _error("no_rows_out", OP2D, lambda m: _cut(m, OP2D, "grad_output", 2, 3, 0)),
        _error("two_dimensions", OP2D, lambda m: {k: v[0, 0] for k, v in _with(m, OP2D).items()}),
        _error(
            "mixed_dtypes",
            OP2D,
            lambda m: _with(m, OP2D, grad_output=m.normal(2, 3, 2, 2).double()),
        ),
        _error("integers", OP2D, lambda m: _with(m, OP2D), torch.int64),
        _error("no_rows_out", OP3D, lambda m: _cut(m, OP3D, "grad_output", 2, 3, 2, 0)),
        _error("integers", OP3D, lambda m: _with(m, OP3D), torch.int64),
    ),
    bench=(
        _bench("spp_bin6", OP2D, (16, 256), (13, 13), (6, 6)),
        _bench("spp_bin6_last", OP2D, (16, 256), (13, 13), (6, 6), CL),
        _bench("roi_7x7", OP2D, (256, 256), (25, 34), (7, 7)),
        _bench("cbam_global", OP2D, (32, 256), (56, 56), (1, 1)),
        _bench("waveform_1d", OP2D, (16, 256), (1, 16000), (1, 300)),
        _bench("video_to_7x7", OP3D, (8, 256), (16, 56, 56), (7, 7, 7)),
        _bench("unet3d_pyramid", OP3D, (2, 320), (40, 40, 40), (6, 6, 6)),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
)
