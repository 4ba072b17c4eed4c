"""Samples of the backward of embedding bags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from detmode.table.conditions import FLOATING
from detmode.table.inputs import Arguments, special
from detmode.table.samples import Maker, Sample, Samples, sample

BAG, DENSE = "aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward"
WEIGHTS = "aten::_embedding_bag_per_sample_weights_backward"


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
) -> Arguments:
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


def _even(m: Maker, bags: int, size: int, *sizes: int, **more: Any) -> Arguments:
    """``bags`` of ``size`` indices; then width, num_weights, spread."""
    return _bags(m, range(0, bags * size, size), bags * size, *sizes, **more)


def _dense(call: Arguments) -> Arguments:
    return {name: value for name, value in call.items() if name not in ("offsets", "sparse")}


def _weights(m: Maker) -> Arguments:
    names = ("grad", "indices", "offsets", "offset2bag", "mode")
    call = _bags(m, mode=0)
    return {**{name: call[name] for name in names}, "weight": m.normal(5, 4)}


# As ATen's CUDA forward says it: -1.
def _marked(call: Arguments) -> Arguments:
    call["maximum_indices"][call["bag_size"] == 0] = -1
    return call


_case = partial(sample, op=BAG, dtypes=FLOATING)
_bench = partial(sample, op=BAG, dtypes=FLOATING[:3])
_plain = _case("plain", _bags)
EMPTY_BAGS = (0, 0, 3, 3, 3, 7, 12)


def _others(op: str, form: Callable[[Arguments], Arguments]) -> tuple[Sample, ...]:
    """Maxima, and what PyTorch computes by itself, in an operator's form."""
    case = partial(sample, op=op)
    return (
        case("max", lambda m: form(_even(m, 60, 3)), dtypes=FLOATING, variants=("cpu",)),
        case("empty_maxima", lambda m: form(_bags(m, EMPTY_BAGS))),
        case("sum", lambda m: form(_bags(m, mode=0)), variants=("mps",)),
        case("mean", lambda m: form(_bags(m, mode=1)), variants=("mps",)),
    )


SAMPLES = Samples(
    cases=(
        _case("shared_rows", lambda m: _even(m, 60, 3, 9, 5, 4), "collisions"),
        _case("one_row", lambda m: _even(m, 300, 2, 4, 3, 1), "collisions"),
        _case("many_rows", lambda m: _even(m, 20, 3, 7, 900, 6), "collisions", dtypes=FLOATING[:3]),
        _case("one_column", lambda m: _even(m, 200, 2, 1, 6, 6), "collisions"),
        _case("one_bag", lambda m: _even(m, 1, 5, 8)),
        _case("empty_bags", lambda m: _bags(m, EMPTY_BAGS), "empty"),
        _case("empty_bags_marked", lambda m: _marked(_bags(m, EMPTY_BAGS)), "empty"),
        _case("only_empty_bags", lambda m: _bags(m, (0, 0, 0), 0), "empty"),
        _case("no_bags", lambda m: _bags(m, (), 0), "empty"),
        _case("no_columns", lambda m: _bags(m, width=0), "empty"),
        _case("padding", lambda m: _even(m, 60, 2, 6, 5, 4, padding_idx=2), "collisions"),
        _case("special", lambda m: special(_even(m, 6, 2, 9), "grad")),
        _case("bags", lambda m: _even(m, 20, 3, 7), variants=("non_contiguous", "int32")),
        _case("odd_1", lambda m: _even(m, 1, 1, 1, 1, 1), "odd_sizes"),
        _case("odd_63", lambda m: _even(m, 63, 2, 63, 9, 9), "odd_sizes", "collisions"),
        _case("odd_1000", lambda m: _even(m, 5, 2, 1000, 3, 3), "odd_sizes", dtypes=FLOATING[:3]),
        *_others(BAG, dict),
        *_others(DENSE, _dense),
        sample("sparse_sum", lambda m: _bags(m, mode=0, sparse=True), op=BAG),
        sample("per_sample_weights", _weights, op=WEIGHTS, variants=("mps",)),
    ),
    errors=(
        _plain.but("row_too_large", num_weights=1),
        _plain.but("indices_not_integer", indices=Tensor.double),
        _plain.but("offsets_not_integer", offsets=Tensor.double),
        _plain.but("offset2bag_not_integer", offset2bag=Tensor.double),
        _plain.but("maximum_not_integer", maximum_indices=Tensor.double),
        _plain.but("indices_apart", indices=lambda x: x.repeat_interleave(2)[::2]),
        _plain.but("negative_num_weights", num_weights=-1),
    ),
    bench=(
        _bench("text_512x50_of_100k_128", lambda m: _even(m, 512, 50, 128, 100_000, 100_000)),
        _bench("text_8kx20_of_30k_64", lambda m: _even(m, 8192, 20, 64, 30_000, 30_000)),
        _bench("categories_64kx4_of_100_32", lambda m: _even(m, 65_536, 4, 32, 100, 100)),
        _bench("one_row_64kx2_of_10_64", lambda m: _even(m, 65_536, 2, 64, 10, 1)),
    ),
    not_applicable={
        "negative_dim": "the operators take no dimension",
        "channels_last": "gradients have two dimensions",
    },
)
