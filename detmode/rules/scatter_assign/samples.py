"""Samples of scatter with a source tensor."""

from __future__ import annotations

from detmode.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.rules.scatter.arguments import onto
from detmode.sample import Sample

SAMPLES: tuple[Sample, ...] = tuple(
    Sample(
        name="assign",
        op="aten::scatter.src",
        make=lambda m: onto(m, [5], 0, [30]),
        dtypes=FLOATING + COMPLEX + INTEGRAL,
        device=device,
    )
    for device in ("cuda", "cpu", "mps")
)
