"""Samples of index_reduce."""

from __future__ import annotations

from typing import Any

from detmode.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.rules.index.arguments import add
from detmode.sample import Maker, Sample


def _reduce(reduce: str, device: str) -> Sample:
    def make(maker: Maker) -> dict[str, Any]:
        return add(maker, [5, 4], 0, 20, reduce=reduce)

    dtypes = FLOATING + COMPLEX if device == "mps" else FLOATING + INTEGRAL
    return Sample(name=reduce, op="aten::index_reduce", make=make, dtypes=dtypes, device=device)


SAMPLES: tuple[Sample, ...] = tuple(
    _reduce(reduce, device)
    for device in ("cuda", "cpu", "mps")
    for reduce in ("prod", "mean", "amax", "amin")
)
