"""Samples of torchvision's backward operators: they bind once torchvision is imported."""

from functools import partial
from typing import Any

from detmode.sample import Maker, Sample


def _regions(make: Maker, op: str) -> dict[str, Any]:
    pooled = {"pooled_height": 2, "pooled_width": 2}
    sizes = {"batch_size": 1, "channels": 4, "height": 8, "width": 8}
    arguments: dict[str, Any] = {
        "grad": make.normal(3, 4, 2, 2),
        "rois": make.tensor([[0, 0, 0, 7, 7], [0, 1, 1, 6, 6], [0, 2, 2, 7, 7]]),
        "spatial_scale": 1.0,
        **pooled,
        **sizes,
    }
    if "align" in op:
        arguments["sampling_ratio"] = 2
    if op == "_roi_align_backward":
        arguments["aligned"] = False
    if op == "_roi_pool_backward":
        arguments["argmax"] = make.integers(0, 64, 3, 4, 2, 2)
    if op.startswith("_ps_"):
        arguments["channel_mapping"] = make.integers(0, 4, 3, 4, 2, 2)
    return arguments


def _deformed(make: Maker, op: str) -> dict[str, Any]:
    pairs = {"stride_h": 1, "stride_w": 1, "pad_h": 1, "pad_w": 1, "dilation_h": 1, "dilation_w": 1}
    return {
        "grad": make.normal(1, 4, 8, 8),
        "input": make.normal(1, 3, 8, 8),
        "weight": make.normal(4, 3, 3, 3),
        "offset": make.normal(1, 18, 8, 8),
        "mask": make.normal(1, 9, 8, 8),
        "bias": make.normal(4),
        **pairs,
        "groups": 1,
        "offset_groups": 1,
        "use_mask": True,
    }


SAMPLES = tuple(
    Sample(
        name=name,
        op=f"torchvision::{op}",
        make=partial(arguments, op=op),
        covers=("collisions",),
        device=device,
    )
    for op, arguments in (
        ("_roi_align_backward", _regions),
        ("_roi_pool_backward", _regions),
        ("_ps_roi_align_backward", _regions),
        ("_ps_roi_pool_backward", _regions),
        ("_deform_conv2d_backward", _deformed),
    )
    for name, device in (("overlaps", "cuda"), ("metal", "mps"), ("host", "cpu"))
)
