"""Samples of the backward of reflection padding."""

from functools import partial
from typing import Any

from detmode.sample import Maker, Sample


def _padded(make: Maker, n: int) -> dict[str, Any]:
    sizes = (5, 4, 6)[:n]
    return {
        "grad_output": make.normal(2, 3, *(size + 3 for size in sizes)),
        "self": make.normal(2, 3, *sizes),
        "padding": [2, 1] * n,
    }


SAMPLES = tuple(
    Sample(
        name=name,
        op=f"aten::reflection_pad{n}d_backward",
        make=partial(_padded, n=n),
        covers=("collisions",),
        device=device,
    )
    for n in (1, 2, 3)
    for name, device in (("both_sides", "cuda"), ("host", "cpu"))
)
