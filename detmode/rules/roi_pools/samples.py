"""Samples of the backward of pooling over regions: they bind once torchvision is imported."""

from __future__ import annotations

from typing import Any

import torch

from detmode.rules.roi_pools import reference
from detmode.rules.roi_pools.source import DTYPES
from detmode.table.samples import Maker, Sample

OPS = (
    "_roi_align_backward",
    "_roi_pool_backward",
    "_ps_roi_align_backward",
    "_ps_roi_pool_backward",
)
NAN, INF = float("nan"), float("inf")

NOT_APPLICABLE: dict[str, str] = {"negative_dim": "the operators take no dimension"}
REFERENCE = {f"torchvision::{op}": getattr(reference, op[1:]) for op in OPS}

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
) -> dict[str, Any]:
    """An operator's arguments: ``shape`` has the channels that grad has, before ``_ps_`` parts."""
    images, channels, height, width = shape
    bins = pooled[0] * pooled[1]
    grad_shape = (len(boxes), channels, *pooled)
    sizes = {"batch_size": images, "channels": channels, "height": height, "width": width}
    found: dict[str, Any] = {
        "grad": m.normal(*grad_shape),
        "rois": m.tensor([list(map(float, box)) for box in boxes]).view(-1, 5),
        "spatial_scale": scale,
        "pooled_height": pooled[0],
        "pooled_width": pooled[1],
    }
    if op.startswith("_ps_"):
        own = torch.arange(channels * bins, dtype=torch.int32, device=m.device)
        found["channel_mapping"] = own.view(channels, *pooled).repeat(len(boxes), 1, 1, 1)
        sizes["channels"] = channels * bins
    if op == "_roi_pool_backward":
        pixels = max(height * width, 1)
        found["argmax"] = m.integers(-1, pixels, *grad_shape, dtype=torch.int32)
    if "align" in op:
        found["sampling_ratio"] = ratio
    if op == "_roi_align_backward":
        found["aligned"] = aligned
    return {**found, **sizes}


def _many(m: Maker, count: int, images: int, height: int, width: int, most: int) -> tuple[Box, ...]:
    """Boxes on eighths of pixels of sizes up to ``most``, some of them partly outside."""
    image = m.integers(0, images, count)
    x, y = (m.integers(-8, 8 * size + 8, count) / 8 for size in (width, height))
    w, h = (m.integers(0, 8 * most, count) / 8 for _ in range(2))
    return tuple(torch.stack([image, x, y, x + w, y + h], 1).tolist())


def _stored(m: Maker, op: str, *order: int) -> dict[str, Any]:
    """The same with the tensors of four dimensions stored in another order."""
    found = _arguments(m, op)
    back = [order.index(d) for d in range(4)]
    for name in {"grad", "argmax", "channel_mapping"} & set(found):
        found[name] = found[name].permute(order).contiguous().permute(back)
    return {**found, "rois": found["rois"].t().contiguous().t()}


def _special(m: Maker, op: str) -> dict[str, Any]:
    """Gradients that not every sum keeps, on boxes whose samples have weights of zero too."""
    boxes: tuple[Box, ...] = ((0, 0, 0, 2, 2), (0, 3, 3, 5, 5), (0, 5, 0, 7.25, 2), (1, 0, 0, 9, 9))
    found = _arguments(m, op, boxes)
    values = [NAN, INF, -INF, -0.0, 1e-40, INF, -0.0, 6e-8]
    found["grad"].view(-1)[: 5 * len(values) : 5] = m.tensor(values)
    return found


def _sample(name: str, op: str, make: Any, *covers: str, device: str = "cuda") -> Sample:
    dtypes = DTYPES if device == "cuda" else (torch.float32,)
    return Sample(
        name=name,
        op=f"torchvision::{op}",
        make=lambda m: make(m, op),
        dtypes=dtypes,
        covers=covers,
        device=device,
    )


WIDE = (1, 2, 9, 63)
SAMPLES: tuple[Sample, ...] = tuple(
    _sample(name, op, make, *covers, device=device)
    for op in OPS
    for name, make, covers, device in (
        ("overlaps", _arguments, ("collisions",), "cuda"),
        ("no_boxes", lambda m, op: _arguments(m, op, ()), ("empty",), "cuda"),
        ("no_images", lambda m, op: _arguments(m, op, (), shape=(0, 4, 8, 8)), ("empty",), "cuda"),
        ("no_pixels", lambda m, op: _arguments(m, op, (), shape=(1, 4, 0, 8)), ("empty",), "cuda"),
        (
            "many_boxes",
            lambda m, op: _arguments(m, op, _many(m, 300, 2, 5, 6, 5), (1, 2), (2, 1, 5, 6)),
            ("collisions",),
            "cuda",
        ),
        (
            "odd",
            lambda m, op: _arguments(m, op, _many(m, 12, 1, 18, 126, 40), (1, 4), WIDE, scale=0.5),
            ("odd_sizes",),
            "cuda",
        ),
        (
            "one_pixel",
            lambda m, op: _arguments(m, op, ((0, 0, 0, 1, 1),) * 3, (1, 2), (1, 1, 1, 1)),
            ("odd_sizes", "collisions"),
            "cuda",
        ),
        ("strided", lambda m, op: _stored(m, op, 3, 1, 0, 2), ("non_contiguous",), "cuda"),
        ("last", lambda m, op: _stored(m, op, 0, 2, 3, 1), ("channels_last",), "cuda"),
        ("special_values", _special, (), "cuda"),
        ("metal", _arguments, (), "mps"),
        ("host", _arguments, (), "cpu"),
    )
) + tuple(
    _sample(name, op, lambda m, op, given=given: _arguments(m, op, *given))
    for op in (OPS[0], OPS[2])
    for name, given in (
        ("adaptive", (OVERLAPPING, (2, 4), (2, 3, 8, 8), 1.0, 0)),
        ("aligned", (OVERLAPPING, (4, 2), (2, 3, 8, 8), 0.5, 2, True)),
        ("small_boxes", (((0, 2, 2, 2.5, 3), (0, 2.25, 2, 2.5, 2)), (4, 8), (1, 2, 5, 5))),
        ("large_boxes", (((0, -20, -8, 44, 56), (0, 0, 0, 500, 9)), (2, 2), (1, 2, 9, 34), 1.0, 0)),
        ("turned_boxes", (((0, 6, 5, 1, 2), (0, 5, 1, 2, 6)), (2, 2), (1, 2, 8, 8), 1.0, 2, True)),
        ("many_channels", (OVERLAPPING, (2, 2), (2, 35 if op == OPS[0] else 5, 8, 8))),
    )
)


def _bench(
    name: str, op: str, count: int, most: int, pooled: int, stride: int, *shape: int
) -> Sample:
    images, _, height, width = shape

    def make(m: Maker, op: str) -> dict[str, Any]:
        boxes = _many(m, count, images, stride * height, stride * width, most)
        return _arguments(m, op, boxes, (pooled, pooled), shape, 1 / stride)

    return _sample(name, op, make)


BENCH: tuple[Sample, ...] = (
    _bench("mask_rcnn_c4", OPS[0], 1024, 512, 14, 16, 2, 1024, 50, 84),
    _bench("mask_rcnn_p2", OPS[0], 1024, 112, 7, 4, 2, 256, 200, 336),
    _bench("fast_rcnn_vgg", OPS[1], 2000, 512, 7, 16, 2, 512, 38, 63),
    _bench("light_head_rcnn", OPS[2], 512, 512, 7, 16, 2, 10, 50, 84),
    _bench("r_fcn", OPS[3], 512, 512, 7, 16, 2, 21, 50, 84),
)
