"""Samples of max unpooling."""

from typing import Any

from detmode.sample import Maker, Sample


def _2d(make: Maker) -> dict[str, Any]:
    input = make.normal(2, 3, 4, 5)
    return {"self": input, "indices": make.integers(0, 9, 2, 3, 4, 5), "output_size": [8, 10]}


def _3d(make: Maker) -> dict[str, Any]:
    return {
        "self": make.normal(2, 3, 2, 3, 2),
        "indices": make.integers(0, 9, 2, 3, 2, 3, 2),
        "output_size": [4, 6, 4],
        "stride": [2, 2, 2],
        "padding": [0, 0, 0],
    }


SAMPLES = tuple(
    Sample(name=name, op=op, make=make, covers=("collisions",), device=device)
    for op, make in (("aten::max_unpool2d", _2d), ("aten::max_unpool3d", _3d))
    for name, device in (("shared_indices", "cuda"), ("host", "cpu"), ("elsewhere", "xpu"))
)
