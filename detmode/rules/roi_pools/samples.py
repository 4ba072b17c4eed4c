"""Samples of the backward of pooling over regions: they bind once torchvision is imported."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from detmode.rules.roi_pools import reference
from detmode.rules.roi_pools.gather import DTYPES
from detmode.table.inputs import LAYOUTS, Arguments, special
from detmode.table.samples import Maker, Sample, Samples, sample

OPS = (
    "_roi_align_backward",
    "_roi_pool_backward",
    "_ps_roi_align_backward",
    "_ps_roi_pool_backward",
)


Box = tuple[float, ...]
OVERLAPPING: tuple[Box, ...] = (
    *((0, 0, 0, 7, 7), (1, 1, 1.5, 6, 6.25), (0, 2, 2, 7, 7)),
    *((0, 2, 2, 7, 7), (0, 2.5, 2, 4.5, 7)),
)


def _arguments(
    m: Maker,
    op: str,
    boxes: tuple[Box, ...] = OVERLAPPING,
    pooled: tuple[int, int] = (2, 2),
    shape: tuple[int, ...] = (2, 4, 8, 8),
    scale: float = 1.0,
    ratio: int = 2,
    aligned: bool = False,
) -> Arguments:
    """An operator's arguments: ``shape`` has the channels that grad has, before ``_ps_`` parts."""
    images, channels, height, width = shape
    bins = pooled[0] * pooled[1]
    grad_shape = (len(boxes), channels, *pooled)
    sizes = {"batch_size": images, "channels": channels, "height": height, "width": width}
    arguments: Arguments = {
        "grad": m.normal(*grad_shape),
        "rois": m.tensor([list(map(float, box)) for box in boxes]).view(-1, 5),
        "spatial_scale": scale,
        "pooled_height": pooled[0],
        "pooled_width": pooled[1],
    }
    if op.startswith("_ps_"):
        order = torch.arange(channels * bins, dtype=torch.int32, device=m.device)
        arguments["channel_mapping"] = order.view(channels, *pooled).repeat(len(boxes), 1, 1, 1)
        sizes["channels"] = channels * bins
    if op == "_roi_pool_backward":
        pixels = max(height * width, 1)
        arguments["argmax"] = m.integers(-1, pixels, *grad_shape, dtype=torch.int32)
    if "align" in op:
        arguments["sampling_ratio"] = ratio
    if op == "_roi_align_backward":
        arguments["aligned"] = aligned
    return {**arguments, **sizes}


def _many(m: Maker, count: int, images: int, height: int, width: int, most: int) -> tuple[Box, ...]:
    """Boxes on eighths of pixels of sizes up to ``most``, some of them partly outside."""
    image = m.integers(0, images, count)
    x, y = (m.integers(-8, 8 * size + 8, count) / 8 for size in (width, height))
    w, h = (m.integers(0, 8 * most, count) / 8 for _ in range(2))
    return tuple(torch.stack([image, x, y, x + w, y + h], 1).tolist())


def _cases(name: str) -> tuple[Sample, ...]:
    case = partial(sample, op=f"torchvision::{name}", dtypes=DTYPES)
    call = partial(_arguments, op=name)
    # Samples have weights of zero too.
    boxes: tuple[Box, ...] = ((0, 0, 0, 2, 2), (0, 3, 3, 5, 5), (0, 5, 0, 7.25, 2), (1, 0, 0, 9, 9))
    one = ((0, 0, 0, 1, 1),) * 3
    cases = (
        case("overlaps", call, "collisions", variants=(*LAYOUTS, "cpu", "mps")),
        case("no_boxes", lambda m: call(m, boxes=()), "empty"),
        case("no_images", lambda m: call(m, boxes=(), shape=(0, 4, 8, 8)), "empty"),
        case("no_pixels", lambda m: call(m, boxes=(), shape=(1, 4, 0, 8)), "empty"),
        case(
            "many_boxes",
            lambda m: _arguments(m, name, _many(m, 300, 2, 5, 6, 5), (1, 2), (2, 1, 5, 6)),
            "collisions",
        ),
        case(
            "odd",
            lambda m: _arguments(m, name, _many(m, 12, 1, 18, 126, 40), (1, 4), (1, 2, 9, 63), 0.5),
            "odd_sizes",
        ),
        case(
            "one_pixel",
            lambda m: _arguments(m, name, one, (1, 2), (1, 1, 1, 1)),
            *("odd_sizes", "collisions"),
        ),
        case("special_values", lambda m: special(call(m, boxes=boxes), "grad", 5)),
    )
    if "align" not in name:
        return cases

    def shaped(title: str, *options: Any) -> Sample:
        return case(title, lambda m: _arguments(m, name, *options))

    small = ((0, 2, 2, 2.5, 3), (0, 2.25, 2, 2.5, 2))
    large = ((0, -20, -8, 44, 56), (0, 0, 0, 500, 9))
    turned = ((0, 6, 5, 1, 2), (0, 5, 1, 2, 6))
    many = 35 if name == OPS[0] else 5
    return (
        *cases,
        shaped("adaptive", OVERLAPPING, (2, 4), (2, 3, 8, 8), 1.0, 0),
        shaped("aligned", OVERLAPPING, (4, 2), (2, 3, 8, 8), 0.5, 2, True),
        shaped("small_boxes", small, (4, 8), (1, 2, 5, 5)),
        shaped("large_boxes", large, (2, 2), (1, 2, 9, 34), 1.0, 0),
        shaped("turned_boxes", turned, (2, 2), (1, 2, 8, 8), 1.0, 2, True),
        shaped("many_channels", OVERLAPPING, (2, 2), (2, many, 8, 8)),
    )


def _bench(
    title: str, name: str, count: int, most: int, pooled: int, stride: int, *shape: int
) -> Sample:
    images, _, height, width = shape

    def make(m: Maker) -> Arguments:
        boxes = _many(m, count, images, stride * height, stride * width, most)
        return _arguments(m, name, boxes, (pooled, pooled), shape, 1 / stride)

    return sample(title, make, op=f"torchvision::{name}", dtypes=DTYPES)


SAMPLES = Samples(
    cases=tuple(sample for name in OPS for sample in _cases(name)),
    errors=tuple(
        _cases(name)[0].but("mixed_dtypes", dtypes=(torch.float32,), rois=torch.Tensor.double)
        for name in OPS
    ),
    bench=(
        _bench("mask_rcnn_c4", OPS[0], 1024, 512, 14, 16, 2, 1024, 50, 84),
        _bench("mask_rcnn_p2", OPS[0], 1024, 112, 7, 4, 2, 256, 200, 336),
        _bench("fast_rcnn_vgg", OPS[1], 2000, 512, 7, 16, 2, 512, 38, 63),
        _bench("light_head_rcnn", OPS[2], 512, 512, 7, 16, 2, 10, 50, 84),
        _bench("r_fcn", OPS[3], 512, 512, 7, 16, 2, 21, 50, 84),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
    references={f"torchvision::{op}": getattr(reference, op[1:]) for op in OPS},
)
