"""Samples of max unpooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from detmode.table.conditions import FLOATING, INTEGRAL
from detmode.table.inputs import LAYOUTS, Arguments, Assigned, places
from detmode.table.samples import Maker, Sample, Samples, made_by, sample

TWO, THREE = "aten::max_unpool2d", "aten::max_unpool3d"


def _unpool(
    m: Maker, shape: Sequence[int], output_size: Sequence[int], spread: int | None = None
) -> Arguments:
    """Indices into the first ``spread`` places of each plane."""
    size = prod(output_size)
    indices = m.integers(0, min(spread or size, size), *shape)
    call = {"self": m.normal(*shape), "indices": indices, "output_size": list(output_size)}
    more = {"stride": [2, 2, 2], "padding": [0, 0, 0]} if len(output_size) == 3 else {}
    return {**call, **more}


def _pooled(m: Maker) -> Arguments:
    pool = torch.nn.functional.max_pool2d
    _, indices = pool(m.normal(2, 3, 9, 9).float().cpu(), 3, stride=1, return_indices=True)
    return _unpool(m, indices.shape, [9, 9]) | {"indices": indices.to(m.device)}


def _assigned(self: Any, indices: Any, output_size: Any, **unread: Any) -> Assigned:
    dims = len(output_size)
    before = self.new_zeros((*self.shape[:-dims], *output_size))
    return before, places(before).flatten(-dims).gather(-1, indices.flatten(-dims)), self


_VOLUMES = [2, 32, 32, 64, 64], [64, 128, 128]
_FEW = (torch.bfloat16, torch.float64, torch.uint8)
_two, _three = made_by(_unpool, op=TWO, dtypes=_FEW), made_by(_unpool, op=THREE, dtypes=_FEW)
_sums, _odd = ({"covers": item} for item in ("collisions", "odd_sizes"))
_every = {**_sums, "dtypes": FLOATING + INTEGRAL, "variants": ("cpu", "meta", "xpu")}


def _errors(op: str, shape: list[int], size: list[int]) -> tuple[Sample, ...]:
    right = sample("right", lambda m: _unpool(m, shape, size), op=op, dtypes=FLOATING[2:])
    return (
        right.but("too_large", indices=lambda indices: indices + prod(size)),
        right.but("negative", indices=lambda indices: indices - prod(size)),
        right.but("int32", indices=Tensor.int),
        right.but("other_shape", indices=lambda indices: indices[:1]),
        right.but("no_channels", self=lambda x: x[:, :0], indices=lambda x: x[:, :0]),
        right.but("too_few_sizes", output_size=[8]),
        right.but("no_channel_dimension", self=lambda x: x[0, 0], indices=lambda x: x[0, 0]),
    )


SAMPLES = Samples(
    cases=(
        _two("few", [2, 3, 4, 5], [8, 10], 9, **_every),
        _three("few", [2, 3, 2, 3, 2], [4, 6, 4], 9, **_every),
        _two("many_channels", [70, 3, 4], [4, 5], **_sums),
        _two("one_destination", [2, 30, 10], [4, 4], 1, **_sums),
        _three("one_destination", [2, 9, 5, 5], [4, 4, 4], 1, **_sums),
        sample("overlapping_windows", _pooled, "collisions", op=TWO, dtypes=_FEW),
        _two("large_output", [2, 3, 3, 3], [20, 30], 9, **_sums, dtypes=FLOATING),
        _three("large_output", [2, 3, 1, 3, 3], [5, 6, 7], 9, **_sums, dtypes=FLOATING),
        _two("odd_1", [1, 1, 1], [1, 1], **_odd),
        _three("odd_1", [1, 1, 1, 1], [1, 1, 1], **_odd),
        _two("odd_sizes", [3, 63, 7], [31, 33], **_odd),
        _three("odd_sizes", [1, 1000, 1, 1], [7, 11, 13], **_odd),
        _two("no_batch", [0, 3, 4, 5], [8, 10], covers="empty"),
        _three("no_batch", [0, 3, 2, 3, 2], [4, 6, 4], covers="empty"),
        _two("images", [2, 3, 4, 5], [8, 10], 20, **_sums, variants=LAYOUTS),
        _three("volumes", [2, 3, 2, 3, 4], [4, 6, 8], 9, **_sums, variants=LAYOUTS),
    ),
    errors=(*_errors(TWO, [2, 3, 4, 5], [8, 10]), *_errors(THREE, [2, 3, 4, 5, 2], [8, 10, 4])),
    bench=(
        _two("segnet_8x64_to_360x480", [8, 64, 180, 240], [360, 480], dtypes=FLOATING[:3]),
        _three("unet3d_2x32_to_64x128x128", *_VOLUMES, dtypes=FLOATING[:3]),
    ),
    not_applicable={"negative_dim": "max unpooling takes no dimension"},
    assignments={TWO: _assigned, THREE: _assigned},
)
