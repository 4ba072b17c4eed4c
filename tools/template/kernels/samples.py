"""Samples of FAMILY: they seek collisions, edges and odd sizes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker, Sample

OP = "aten::TODO"

# What of detmode.sample.COVERS cannot be shown here, and why.
NOT_APPLICABLE: dict[str, str] = {
    "collisions": "TODO: a sample with collisions, or why no two inputs meet",
    "negative_dim": "TODO: a sample with a negative dim, or why there is no dim",
}


def _inputs(make: Maker, *shape: int) -> dict[str, object]:
    return {"self": make.normal(*shape)}  # TODO: the other arguments


def _non_contiguous(make: Maker) -> dict[str, object]:
    return {"self": make.normal(6, 10)[::2, 1::3]}


def _channels_last(make: Maker) -> dict[str, object]:
    image = make.normal(2, 3, 4, 5)
    return {"self": image.contiguous(memory_format=torch.channels_last)}


def _sample(name: str, make: Callable[[Maker], dict[str, object]], *covers: str) -> Sample:
    return Sample(name=name, op=OP, make=make, dtypes=FLOATING, covers=covers)


SAMPLES: tuple[Sample, ...] = (
    _sample("one_element", lambda make: _inputs(make, 1), "odd_sizes"),
    _sample("odd_sizes", lambda make: _inputs(make, 63, 10), "odd_sizes"),
    _sample("many", lambda make: _inputs(make, 1000), "odd_sizes"),
    _sample("empty", lambda make: _inputs(make, 0, 3), "empty"),
    _sample("non_contiguous", _non_contiguous, "non_contiguous"),
    _sample("channels_last", _channels_last, "channels_last"),
    # The rows for other devices are met by samples of those devices.
    Sample(name="host", op=OP, make=lambda make: _inputs(make, 3), device="cpu"),
)

# Inputs that ATen rejects; the substitute must raise the same type of exception.
ERRORS: tuple[Sample, ...] = ()

# Sizes from real models.
BENCH: tuple[Sample, ...] = ()
