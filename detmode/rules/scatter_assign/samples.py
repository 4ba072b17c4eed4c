"""Samples of scatter with a source tensor."""

from __future__ import annotations

from typing import Any

from detmode.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.rules.scatter.arguments import onto
from detmode.sample import Maker, Sample

SUMS = FLOATING + COMPLEX


def value(make: Maker) -> dict[str, Any]:
    """Scatter of a scalar, with reduce."""
    arguments = onto(make, [5], 0, [30], reduce="add", value=2)
    del arguments["src"]
    return arguments


SAMPLES: tuple[Sample, ...] = tuple(
    Sample(name=name, op=f"aten::scatter.{overload}", make=make, dtypes=dtypes, device=device)
    for device in ("cuda", "cpu", "mps")
    for name, overload, make, dtypes in (
        ("assign", "src", lambda m: onto(m, [5], 0, [30]), SUMS + INTEGRAL),
        ("add", "reduce", lambda m: onto(m, [5], 0, [30], reduce="add"), SUMS + INTEGRAL),
        ("multiply", "reduce", lambda m: onto(m, [5], 0, [3], reduce="multiply"), FLOATING),
        ("empty", "reduce", lambda m: onto(m, [5], 0, [0], reduce="multiply"), FLOATING),
        ("value", "value_reduce", value, SUMS),
    )
)
