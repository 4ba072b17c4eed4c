"""Samples of the backward of embedding bags."""

from typing import Any

import torch

from detmode.sample import Maker, Sample


def _bags(make: Maker, mode: int, *, sparse: bool = False) -> dict[str, Any]:
    weight, indices = make.normal(5, 4), make.integers(0, 3, 12)
    offsets = make.tensor([0, 4, 9], dtype=torch.int64)
    _, offset2bag, bag_size, maximum_indices = torch.ops.aten._embedding_bag(
        weight, indices, offsets, False, mode
    )
    return {
        "grad": make.normal(3, 4),
        "indices": indices,
        "offsets": offsets,
        "offset2bag": offset2bag,
        "bag_size": bag_size,
        "maximum_indices": maximum_indices,
        "num_weights": 5,
        "scale_grad_by_freq": False,
        "mode": mode,
        "sparse": sparse,
        "per_sample_weights": None,
    }


def _dense(make: Maker, mode: int) -> dict[str, Any]:
    bags = _bags(make, mode)
    return {name: value for name, value in bags.items() if name not in ("offsets", "sparse")}


def _weights(make: Maker) -> dict[str, Any]:
    kept = ("grad", "indices", "offsets", "offset2bag", "mode")
    bags = {name: value for name, value in _bags(make, 0).items() if name in kept}
    return {**bags, "weight": make.normal(5, 4)}


_BAG, _DENSE = "aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward"
_WEIGHTS = "aten::_embedding_bag_per_sample_weights_backward"

SAMPLES = (
    Sample(name="max", op=_BAG, make=lambda make: _bags(make, 2), covers=("collisions",)),
    Sample(name="sum", op=_BAG, make=lambda make: _bags(make, 0)),
    Sample(name="sparse_sum", op=_BAG, make=lambda make: _bags(make, 0, sparse=True)),
    Sample(name="metal_mean", op=_BAG, make=lambda make: _bags(make, 1), device="mps"),
    Sample(name="host_max", op=_BAG, make=lambda make: _bags(make, 2), device="cpu"),
    Sample(name="max", op=_DENSE, make=lambda make: _dense(make, 2), covers=("collisions",)),
    Sample(name="mean", op=_DENSE, make=lambda make: _dense(make, 1)),
    Sample(name="metal_sum", op=_DENSE, make=lambda make: _dense(make, 0), device="mps"),
    Sample(name="per_sample_weights", op=_WEIGHTS, make=_weights),
    Sample(name="metal_per_sample_weights", op=_WEIGHTS, make=_weights, device="mps"),
)
