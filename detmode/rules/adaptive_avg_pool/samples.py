"""Samples of adaptive average pooling's backward."""

from __future__ import annotations

from typing import Any

import torch

from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker, Sample, Samples

OP2D = "aten::_adaptive_avg_pool2d_backward"
OP3D = "aten::_adaptive_avg_pool3d_backward"
OP3D_OUT = "aten::adaptive_avg_pool3d_backward.grad_input"
INF, NAN = float("inf"), float("nan")


def _pair(
    m: Maker,
    leading: tuple[int, ...],
    size_in: tuple[int, ...],
    size_out: tuple[int, ...],
    memory_format: torch.memory_format = torch.contiguous_format,
) -> dict[str, Any]:
    grad_output = m.normal(*leading, *size_out).contiguous(memory_format=memory_format)
    self = m.normal(*leading, *size_in).contiguous(memory_format=memory_format)
    return {"grad_output": grad_output, "self": self}


def _strided(m: Maker, leading: tuple[int, ...], *sizes: tuple[int, ...]) -> dict[str, Any]:
    size_in, size_out = (tuple(2 * size for size in axis) for axis in sizes)
    pair = _pair(m, leading, size_in, size_out)
    return {name: tensor[..., ::2, 1::2] for name, tensor in pair.items()}


def _special(m: Maker) -> dict[str, Any]:
    values = [[1.0, NAN, -0.0, 2.0], [INF, -INF, INF, 1e-40], [-0.0, -0.0, 6e-8, -1e-39]]
    return {"grad_output": m.tensor([values]), "self": m.normal(1, 7, 6)}


def _last2d(m: Maker) -> dict[str, Any]:
    return _pair(m, (2, 72), (43, 43), (6, 5), torch.channels_last)


def _out(m: Maker) -> dict[str, Any]:
    grad_input = m.tensor([])
    return {**_pair(m, (2, 3), (5, 7, 4), (3, 2, 5)), "grad_input": grad_input}


def _sample(name: str, op: str, make: Any, *covers: str, device: str = "cuda") -> Sample:
    return Sample(name=name, op=op, make=make, dtypes=FLOATING, covers=covers, device=device)


CL, CL3D = torch.channels_last, torch.channels_last_3d


def _mixed(m: Maker) -> dict[str, Any]:
    return {**_pair(m, (2, 3), (5, 5), (2, 2)), "grad_output": m.normal(2, 3, 2, 2).double()}


REDUCED_AND_FLOAT = FLOATING[:3]


def _bench(name: str, op: str, *shape: Any) -> Sample:
    return Sample(name=name, op=op, make=lambda m: _pair(m, *shape), dtypes=REDUCED_AND_FLOAT)


SAMPLES = Samples(
    cases=(
        _sample("overlap", OP2D, lambda m: _pair(m, (2, 3), (11, 13), (7, 8)), "collisions"),
        _sample("upsampling", OP2D, lambda m: _pair(m, (2, 3), (3, 2), (16, 21)), "collisions"),
        _sample("divisible", OP2D, lambda m: _pair(m, (3, 2), (12, 8), (4, 2))),
        _sample("identity", OP2D, lambda m: _pair(m, (2, 5), (7, 7), (7, 7))),
        _sample("one_dimensional", OP2D, lambda m: _pair(m, (2, 4, 1), (63,), (10,))),
        _sample("unbatched", OP2D, lambda m: _pair(m, (5,), (9, 10), (4, 3))),
        _sample("empty_batch", OP2D, lambda m: _pair(m, (0, 3), (9, 10), (4, 3)), "empty"),
        _sample("special_values", OP2D, _special),
        _sample("strided", OP2D, lambda m: _strided(m, (2, 3), (9, 10), (4, 3)), "non_contiguous"),
        _sample("last", OP2D, lambda m: _pair(m, (2, 5), (9, 10), (4, 3), CL), "channels_last"),
        _sample("last_many", OP2D, _last2d, "channels_last"),
        _sample("odd", OP2D, lambda m: _pair(m, (1, 1), (63, 1000), (10, 63)), "odd_sizes"),
        _sample("odd_many", OP2D, lambda m: _pair(m, (3, 3), (30, 1000), (7, 63)), "odd_sizes"),
        _sample("overlap", OP3D, lambda m: _pair(m, (2, 3), (5, 7, 4), (3, 4, 3)), "collisions"),
        _sample("upsampling", OP3D, lambda m: _pair(m, (1, 2), (2, 3, 4), (5, 5, 5)), "collisions"),
        _sample("divisible", OP3D, lambda m: _pair(m, (1, 2), (4, 6, 8), (2, 3, 4))),
        _sample("unbatched", OP3D, lambda m: _pair(m, (3,), (4, 5, 6), (3, 2, 4))),
        _sample("empty_batch", OP3D, lambda m: _pair(m, (0, 3), (4, 5, 6), (3, 2, 4)), "empty"),
        _sample(
            "strided", OP3D, lambda m: _strided(m, (2,), (3, 9, 10), (2, 4, 3)), "non_contiguous"
        ),
        _sample(
            "last", OP3D, lambda m: _pair(m, (2, 5), (4, 5, 6), (3, 2, 4), CL3D), "channels_last"
        ),
        _sample("odd_many", OP3D, lambda m: _pair(m, (1, 9), (1, 63, 500), (1, 8, 7)), "odd_sizes"),
        _sample("odd", OP3D, lambda m: _pair(m, (1, 1), (1, 63, 1000), (3, 10, 63)), "odd_sizes"),
        _sample("resized", OP3D_OUT, _out, "collisions"),
        _sample("host", OP2D, lambda m: _pair(m, (2, 3), (9, 10), (4, 3)), device="cpu"),
        _sample("host", OP3D, lambda m: _pair(m, (2, 3), (4, 5, 6), (3, 2, 4)), device="cpu"),
        _sample("host", OP3D_OUT, _out, device="cpu"),
    ),
    errors=(
        Sample(name="no_rows_out", op=OP2D, make=lambda m: _pair(m, (2, 3), (5, 5), (0, 2))),
        Sample(name="no_channels", op=OP2D, make=lambda m: _pair(m, (2, 0), (5, 5), (2, 2))),
        Sample(name="two_dimensions", op=OP2D, make=lambda m: _pair(m, (), (5, 5), (2, 2))),
        Sample(name="mixed_dimensions", op=OP2D, make=lambda m: _pair(m, (2,), (3, 5, 5), (2, 2))),
        Sample(name="mixed_dtypes", op=OP2D, make=_mixed),
        Sample(
            name="integers",
            op=OP2D,
            make=lambda m: _pair(m, (2, 3), (5, 5), (2, 2)),
            dtypes=(torch.int64,),
        ),
        Sample(name="no_rows_out", op=OP3D, make=lambda m: _pair(m, (2, 3), (5, 5, 5), (2, 0, 2))),
        Sample(
            name="mixed_dimensions", op=OP3D, make=lambda m: _pair(m, (2,), (3, 5, 5, 5), (2, 2, 2))
        ),
    ),
    bench=(
        _bench("vgg16_head", OP2D, (64, 512), (7, 7), (7, 7)),
        _bench("alexnet_head_320px", OP2D, (128, 256), (9, 9), (6, 6)),
        *(_bench(f"pspnet_bin{o}", OP2D, (4, 2048), (60, 60), (o, o)) for o in (2, 3, 6)),
        *(_bench(f"pspnet_bin{o}_last", OP2D, (4, 2048), (60, 60), (o, o), CL) for o in (2, 3, 6)),
        _bench("area_half", OP2D, (8, 64), (224, 224), (112, 112)),
        _bench("waveform_1d", OP2D, (16, 256, 1), (16000,), (300,)),
        _bench("slowfast_head", OP3D, (8, 2048), (8, 7, 7), (2, 7, 7)),
        _bench("video_to_7x7", OP3D, (8, 256), (16, 56, 56), (8, 7, 7)),
        _bench("unet3d_pyramid", OP3D, (2, 320), (40, 40, 40), (6, 6, 6)),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
)
