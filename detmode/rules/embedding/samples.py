"""Samples of the backward of embeddings."""

from typing import Any

from detmode.sample import Maker, Sample


def _backward(make: Maker) -> dict[str, Any]:
    return {
        "grad_output": make.normal(4, 1000, 3),
        "indices": make.integers(0, 3, 4, 1000),
        "num_weights": 7,
        "padding_idx": -1,
        "scale_grad_by_freq": False,
    }


SAMPLES = tuple(
    Sample(
        name=name,
        op="aten::embedding_dense_backward",
        make=_backward,
        covers=("collisions",),
        device=device,
    )
    for name, device in (("few_rows", "cuda"), ("metal", "mps"), ("host", "cpu"))
)
