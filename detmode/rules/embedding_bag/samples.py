"""Samples of the backward of embedding bags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker, Sample, Samples

BAG, DENSE = "aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward"
WEIGHTS = "aten::_embedding_bag_per_sample_weights_backward"
INF, NAN = float("inf"), float("nan")


def _bags(
    m: Maker,
    offsets: Sequence[int] = (0, 4, 9),
    positions: int = 12,
    width: int = 4,
    num_weights: int = 5,
    spread: int = 3,
    mode: int = 2,
    padding_idx: int = -1,
    **more: Any,
) -> dict[str, Any]:
    """Bags of indices below ``spread``, with what ATen's CPU forward says of them."""
    weight = m.normal(num_weights, width)
    indices = m.integers(0, spread, positions)
    starts = m.tensor(list(offsets), dtype=torch.int64)
    _, offset2bag, bag_size, maximum_indices = (
        tensor.to(m.device)
        for tensor in torch.ops.aten._embedding_bag(
            weight.cpu().double(), indices.cpu(), starts.cpu(), False, mode, padding_idx=padding_idx
        )
    )
    return {
        "grad": m.normal(len(offsets), width),
        "indices": indices,
        "offsets": starts,
        "offset2bag": offset2bag,
        "bag_size": bag_size,
        "maximum_indices": maximum_indices,
        "num_weights": num_weights,
        "scale_grad_by_freq": False,
        "mode": mode,
        "sparse": False,
        "per_sample_weights": None,
        "padding_idx": padding_idx,
        **more,
    }


def _even(m: Maker, bags: int, each: int, *sizes: int, **more: Any) -> dict[str, Any]:
    """``bags`` of ``each`` indices; then width, num_weights, spread."""
    return _bags(m, range(0, bags * each, each), bags * each, *sizes, **more)


def _dense(call: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name not in ("offsets", "sparse")}


def _weights(m: Maker) -> dict[str, Any]:
    kept = ("grad", "indices", "offsets", "offset2bag", "mode")
    call = _bags(m, mode=0)
    return {**{name: call[name] for name in kept}, "weight": m.normal(5, 4)}


def _strided(call: dict[str, Any]) -> dict[str, Any]:
    for name in ("grad", "maximum_indices"):
        call[name] = call[name].t().contiguous().t()
    return call


def _narrow(call: dict[str, Any]) -> dict[str, Any]:
    names = ("indices", "offsets", "offset2bag", "bag_size", "maximum_indices")
    return {**call, **{name: call[name].int() for name in names}}


# As ATen's CUDA forward says it: -1.
def _marked(call: dict[str, Any]) -> dict[str, Any]:
    call["maximum_indices"][call["bag_size"] == 0] = -1
    return call


def _special(call: dict[str, Any], m: Maker) -> dict[str, Any]:
    values = [1.0, NAN, -0.0, 2.0, INF, -INF, INF, 1e-40, 6e-8, -0.0, -0.0, 3e38, 3e38, 3.0]
    call["grad"].view(-1)[: len(values)] = m.tensor(values)
    return call


def _with(m: Maker, **changed: Any) -> dict[str, Any]:
    return {**_bags(m), **changed}


def _sample(name: str, make: Any, *covers: str, dtypes: Any = FLOATING) -> Sample:
    return Sample(name=name, op=BAG, make=make, dtypes=dtypes, covers=covers)


def _plain(name: str, op: str, make: Any, device: str = "cuda") -> Sample:
    return Sample(name=name, op=op, make=make, device=device)


EMPTY_BAGS = (0, 0, 3, 3, 3, 7, 12)


def _bench(name: str, *sizes: int) -> Sample:
    return Sample(name=name, op=BAG, make=lambda m: _even(m, *sizes), dtypes=FLOATING[:3])


SAMPLES = Samples(
    cases=(
        _sample("shared_rows", lambda m: _even(m, 60, 3, 9, 5, 4), "collisions"),
        _sample("one_row", lambda m: _even(m, 300, 2, 4, 3, 1), "collisions"),
        _sample(
            "many_rows", lambda m: _even(m, 20, 3, 7, 900, 6), "collisions", dtypes=FLOATING[:3]
        ),
        _sample("one_column", lambda m: _even(m, 200, 2, 1, 6, 6), "collisions"),
        _sample("one_bag", lambda m: _even(m, 1, 5, 8)),
        _sample("empty_bags", lambda m: _bags(m, EMPTY_BAGS), "empty"),
        _sample("empty_bags_marked", lambda m: _marked(_bags(m, EMPTY_BAGS)), "empty"),
        _sample("only_empty_bags", lambda m: _bags(m, (0, 0, 0), 0), "empty"),
        _sample("no_bags", lambda m: _bags(m, (), 0), "empty"),
        _sample("no_columns", lambda m: _bags(m, width=0), "empty"),
        _sample("padding", lambda m: _even(m, 60, 2, 6, 5, 4, padding_idx=2), "collisions"),
        _sample("int32", lambda m: _narrow(_even(m, 9, 3))),
        _sample("special", lambda m: _special(_even(m, 6, 2, 9), m)),
        _sample("strided", lambda m: _strided(_even(m, 20, 3, 7)), "non_contiguous"),
        _sample("odd_1", lambda m: _even(m, 1, 1, 1, 1, 1), "odd_sizes"),
        _sample("odd_63", lambda m: _even(m, 63, 2, 63, 9, 9), "odd_sizes", "collisions"),
        _sample("odd_1000", lambda m: _even(m, 5, 2, 1000, 3, 3), "odd_sizes", dtypes=FLOATING[:3]),
        Sample(name="max", op=DENSE, make=lambda m: _dense(_even(m, 60, 3)), dtypes=FLOATING),
        _plain("empty_bags", DENSE, lambda m: _dense(_bags(m, EMPTY_BAGS))),
        _plain("sum", BAG, lambda m: _bags(m, mode=0)),
        _plain("sparse_sum", BAG, lambda m: _bags(m, mode=0, sparse=True)),
        _plain("mean", BAG, lambda m: _bags(m, mode=1), "mps"),
        _plain("max", BAG, _bags, "cpu"),
        _plain("mean", DENSE, lambda m: _dense(_bags(m, mode=1))),
        _plain("sum", DENSE, lambda m: _dense(_bags(m, mode=0)), "mps"),
        _plain("per_sample_weights", WEIGHTS, _weights),
        _plain("per_sample_weights", WEIGHTS, _weights, "mps"),
    ),
    errors=(
        _sample("row_too_large", lambda m: _with(m, num_weights=1)),
        _sample("indices_not_integer", lambda m: _with(m, indices=m.normal(12))),
        _sample("offsets_not_integer", lambda m: _with(m, offsets=m.normal(3))),
        _sample("offset2bag_not_integer", lambda m: _with(m, offset2bag=m.normal(12))),
        _sample("maximum_not_integer", lambda m: _with(m, maximum_indices=m.normal(3, 4))),
        _sample("indices_apart", lambda m: _with(m, indices=m.integers(0, 3, 24)[::2])),
        _sample("negative_num_weights", lambda m: _with(m, num_weights=-1)),
    ),
    bench=(
        _bench("text_512x50_of_100k_128", 512, 50, 128, 100_000, 100_000),
        _bench("text_8kx20_of_30k_64", 8192, 20, 64, 30_000, 30_000),
        _bench("categories_64kx4_of_100_32", 65_536, 4, 32, 100, 100),
        _bench("one_row_64kx2_of_10_64", 65_536, 2, 64, 10, 1),
    ),
    not_applicable={
        "negative_dim": "the operators take no dimension",
        "channels_last": "gradients have two dimensions",
    },
)
