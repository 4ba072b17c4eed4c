"""Samples of the negative log likelihood over images."""

from typing import Any

from detmode.sample import Maker, Sample


def _losses(make: Maker, reduction: int, weighted: bool = False) -> dict[str, Any]:
    return {
        "self": make.normal(2, 5, 7, 6),
        "target": make.integers(0, 5, 2, 7, 6),
        "weight": make.normal(5) if weighted else None,
        "reduction": reduction,
        "ignore_index": -100,
    }


_OP = "aten::nll_loss2d_forward"

SAMPLES = (
    Sample(name="mean", op=_OP, make=lambda make: _losses(make, 1)),
    Sample(name="weighted_sum", op=_OP, make=lambda make: _losses(make, 2, weighted=True)),
    Sample(name="no_reduction", op=_OP, make=lambda make: _losses(make, 0)),
    Sample(name="host", op=_OP, make=lambda make: _losses(make, 1), device="cpu"),
)
