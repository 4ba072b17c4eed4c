"""Samples of index_copy."""

from __future__ import annotations

from detmode.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.rules.index.arguments import add
from detmode.sample import Sample

SAMPLES: tuple[Sample, ...] = tuple(
    Sample(
        name="duplicates",
        op="aten::index_copy",
        make=lambda m: add(m, [5, 4], 0, 20),
        dtypes=FLOATING + COMPLEX + INTEGRAL,
        device=device,
    )
    for device in ("cuda", "cpu", "mps")
)
