"""Samples of the backward of grid sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from detmode.rules.grid_sampler import reference
from detmode.rules.grid_sampler.arguments import (
    BICUBIC,
    BILINEAR,
    BORDER,
    NEAREST,
    REFLECTION,
    ZEROS,
    backward,
    cudnn,
    exact,
)
from detmode.rules.grid_sampler.composition import grid_sampler_backward
from detmode.table.conditions import FLOATING
from detmode.table.inputs import cut, last, strided
from detmode.table.samples import Maker, Sample, Samples, sample

OPS = {2: "aten::grid_sampler_2d_backward", 3: "aten::grid_sampler_3d_backward"}
CUDNN = "aten::cudnn_grid_sampler_backward"
CUDNN_DTYPES = (torch.float16, torch.float32, torch.float64)


Make = Callable[[Maker], dict[str, Any]]
_MAKERS: tuple[tuple[int, str, str, Make], ...] = (
    (2, "magnified", "collisions", lambda m: backward(m, (2, 3), (4, 2), (13, 11))),
    (2, "corners", "collisions", lambda m: backward(m, (2, 3), (3, 5), (9, 7), 0, 0, True)),
    (2, "border", "collisions", lambda m: backward(m, (2, 2), (4, 2), (9, 7), 0, BORDER)),
    (2, "border_corners", "", lambda m: backward(m, (1, 2), (5, 3), (7, 7), 0, BORDER, True)),
    (2, "reflected", "", lambda m: backward(m, (1, 2), (4, 2), (7, 7), 0, REFLECTION, reach=9)),
    (2, "reflected_corners", "", lambda m: backward(m, (1, 2), (5, 3), (7, 7), 0, 2, True)),
    (2, "nearest", "collisions", lambda m: backward(m, (2, 3), (4, 4), (9, 7), NEAREST)),
    (2, "nearest_border", "", lambda m: backward(m, (1, 3), (5, 5), (5, 7), NEAREST, BORDER, True)),
    (2, "nearest_exact", "", lambda m: exact(m, NEAREST, ZEROS, True)),
    (2, "bicubic", "collisions", lambda m: backward(m, (2, 2), (4, 8), (5, 7), BICUBIC)),
    (2, "bicubic_border", "", lambda m: backward(m, (1, 2), (3, 2), (5, 5), BICUBIC, BORDER, True)),
    (2, "bicubic_reflected", "", lambda m: backward(m, (1, 2), (4, 2), (5, 5), BICUBIC, 2)),
    (2, "exact", "", lambda m: exact(m, BILINEAR, ZEROS, True)),
    (2, "exact_border", "", lambda m: exact(m, BILINEAR, BORDER, True)),
    (2, "exact_reflected", "", lambda m: exact(m, BILINEAR, REFLECTION, True)),
    (2, "one_pixel", "odd_sizes", lambda m: backward(m, (1, 2), (1, 1), (3, 63), 0, 2, True)),
    (2, "odd", "odd_sizes", lambda m: backward(m, (1, 1), (1, 65), (1, 1000), 0, 0, True)),
    (2, "many_channels", "collisions", lambda m: backward(m, (1, 67), (2, 4), (5, 7))),
    (2, "grid_only", "", lambda m: backward(m, (1, 2), (4, 4), (5, 5), output_mask=[False, True])),
    (2, "empty_batch", "empty", lambda m: backward(m, (0, 3), (4, 4), (5, 5))),
    (2, "empty_output", "empty", lambda m: backward(m, (2, 3), (4, 4), (5, 0))),
    (2, "no_channels", "empty", lambda m: backward(m, (2, 0), (4, 4), (5, 3))),
    (2, "strided", "non_contiguous", lambda m: strided(backward(m, (2, 3), (4, 8), (5, 7)))),
    (
        2,
        "last",
        "channels_last",
        lambda m: last(backward(m, (2, 34), (4, 2), (5, 3))),
    ),
    (3, "magnified", "collisions", lambda m: backward(m, (2, 2), (2, 4, 2), (5, 4, 3))),
    (3, "corners", "", lambda m: backward(m, (1, 2), (3, 2, 5), (4, 3, 3), 0, ZEROS, True)),
    (3, "border", "collisions", lambda m: backward(m, (1, 2), (1, 4, 2), (4, 3, 3), 0, BORDER)),
    (3, "reflected", "", lambda m: backward(m, (1, 2), (1, 4, 2), (4, 3, 3), 0, 2, reach=5)),
    (3, "nearest", "collisions", lambda m: backward(m, (1, 2), (2, 4, 2), (5, 4, 3), NEAREST)),
    (
        3,
        "grid_only",
        "",
        lambda m: backward(m, (1, 2), (1, 2, 4), (3, 2, 2), output_mask=[False] * 2),
    ),
    (3, "empty_output", "empty", lambda m: backward(m, (2, 3), (4, 4, 4), (5, 0, 2))),
    (3, "strided", "non_contiguous", lambda m: strided(backward(m, (1, 2), (1, 2, 4), (2, 3, 4)))),
    (
        3,
        "last",
        "channels_last",
        lambda m: last(backward(m, (1, 35), (2, 4, 2), (2, 3, 2))),
    ),
)


def _cudnn(name: str, *covers: str, make: Make) -> Sample:
    return sample(name, make, *covers, op=CUDNN, dtypes=CUDNN_DTYPES)


_flat = sample("flat", lambda m: backward(m, (2, 3), (4, 4), (5, 5)), op=OPS[2])
_deep = sample("deep", lambda m: backward(m, (2, 3), (4, 4, 4), (5, 5, 5)), op=OPS[3])


def _bench(name: str, dims: int, *arguments: Any, **more: Any) -> Sample:
    make: Any = partial(backward, **more)
    return sample(name, lambda m: make(m, *arguments), op=OPS[dims], dtypes=FLOATING[:3])


SAMPLES = Samples(
    cases=(
        *(
            Sample(
                name=name, op=OPS[dims], make=make, covers=tuple(covers.split()), dtypes=FLOATING
            )
            for dims, name, covers, make in _MAKERS
        ),
        replace(_flat, device="cpu"),
        replace(_flat, device="mps"),
        replace(_deep, device="cpu"),
        replace(_deep, device="mps"),
        _cudnn("magnified", "collisions", make=lambda m: cudnn(m, (2, 3), (3, 5), (13, 11))),
        _cudnn("strided", make=lambda m: strided(cudnn(m, (2, 3), (3, 5), (6, 5)))),
        _cudnn("empty_batch", make=lambda m: cudnn(m, (0, 3), (4, 5), (6, 5))),
        sample("host", lambda m: cudnn(m, (2, 3), (3, 5), (6, 5)), op=CUDNN, device="cpu"),
    ),
    errors=(
        _flat.but("other_batch", grid=lambda grid: grid[:1]),
        _flat.but("three_coordinates", grid=torch.zeros(2, 5, 5, 3)),
        _flat.but("no_pixels", input=cut(2, 3, 0)),
        _flat.but("volume", input=torch.ones(2, 3, 4, 4, 4)),
        _flat.but("wide_input", input=Tensor.double),
        _flat.but("wide_grid", grid=Tensor.double),
        _flat.but("wide_gradient", grad_output=Tensor.double),
        _flat.but("integers", dtypes=(torch.int64,)),
        _deep.but("two_coordinates", grid=torch.zeros(2, 5, 5, 5, 2)),
        _deep.but("image", input=torch.ones(2, 3, 4, 4)),
        _deep.but("integers", dtypes=(torch.int64,)),
    ),
    bench=(
        _bench("spatial_transformer", 2, (64, 3), (224, 224), (224, 224), smooth=True),
        _bench("raft_lookup", 2, (7040, 1), (55, 128), (9, 9), 0, ZEROS, True),
        _bench("flow_warp", 2, (8, 64), (96, 128), (96, 128), 0, BORDER, True, smooth=True),
        _bench("deformable_attention", 2, (16, 32), (100, 134), (13_294, 4)),
        _bench(
            "bicubic_image", 2, (4, 3), (512, 512), (512, 512), BICUBIC, REFLECTION, smooth=True
        ),
        _bench("registration", 3, (1, 1), *[(160, 192, 224)] * 2, 0, BORDER, True, smooth=True),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
    references={
        **dict.fromkeys(OPS.values(), reference.backward),
        CUDNN: reference.cudnn_backward,
    },
    unlike_cpu=dict.fromkeys(
        (name for _, name, _, _ in _MAKERS if "nearest" not in name or "border" in name),
        "for NaN and infinite positions the CPU kernels weigh what lies outside, or read beyond it",
    ),
    compositions=dict.fromkeys(OPS.values(), grid_sampler_backward),
)
