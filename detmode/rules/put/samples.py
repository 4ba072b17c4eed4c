"""Samples of ``put``."""

from functools import partial
from typing import Any

from detmode.sample import Maker, Sample


def _put(make: Maker, *, accumulate: bool) -> dict[str, Any]:
    return {
        "self": make.normal(3, 4),
        "index": make.integers(-12, 12, 60),
        "source": make.normal(60),
        "accumulate": accumulate,
    }


SAMPLES = (
    *(
        Sample(
            name=f"{name}_{'sum' if accumulate else 'last'}",
            op="aten::put",
            make=partial(_put, accumulate=accumulate),
            covers=("collisions",),
            device=device,
        )
        for name, device in (("shared_indices", "cuda"), ("host", "cpu"))
        for accumulate in (False, True)
    ),
    Sample(
        name="elsewhere",
        op="aten::put",
        make=lambda make: _put(make, accumulate=False),
        device="meta",
    ),
)
