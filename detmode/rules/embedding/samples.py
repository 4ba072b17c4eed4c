"""Samples of the backward of embeddings."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from detmode.table.conditions import FLOATING
from detmode.table.inputs import LAYOUTS, Arguments, special
from detmode.table.samples import Maker, Samples, sample

OP = "aten::embedding_dense_backward"


def _call(
    m: Maker,
    positions: tuple[int, ...],
    width: int,
    num_weights: int = 7,
    spread: int | None = None,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
) -> Arguments:
    """Indices below ``spread``."""
    return {
        "grad_output": m.normal(*positions, width),
        "indices": m.integers(0, spread or num_weights, *positions),
        "num_weights": num_weights,
        "padding_idx": padding_idx,
        "scale_grad_by_freq": scale_grad_by_freq,
    }


def _zipf(m: Maker, positions: int, width: int, num_weights: int, **more: Any) -> Arguments:
    call = _call(m, (positions,), width, num_weights, **more)
    return {**call, "indices": m.zipf(positions, num_weights)}


_case = partial(sample, op=OP, dtypes=FLOATING)
_bench = partial(sample, op=OP, dtypes=FLOATING[:3])
_plain = _case("plain", lambda m: _call(m, (9,), 4))


SAMPLES = Samples(
    cases=(
        _case("few_rows", lambda m: _call(m, (4, 250), 16, spread=3), "collisions"),
        _case("one_row", lambda m: _call(m, (1, 400), 33, spread=1), "collisions"),
        _case("narrow", lambda m: _call(m, (300,), 1, 5), "collisions"),
        _case("zipf", lambda m: _zipf(m, 900, 24, 200), "collisions"),
        _case("many_rows", lambda m: _call(m, (30,), 5, 40_000), dtypes=FLOATING[2:3]),
        _case("padding", lambda m: _call(m, (3, 60), 20, padding_idx=2), "collisions"),
        _case("padding_narrow", lambda m: _call(m, (99,), 1, 4, padding_idx=0), "collisions"),
        _case("padding_only", lambda m: _call(m, (9,), 4, 4, 1, padding_idx=0)),
        _case("scaled", lambda m: _call(m, (200,), 12, 9, 4, -1, True), "collisions"),
        _case("scaled_narrow", lambda m: _call(m, (200,), 1, 5, 4, -1, True), "collisions"),
        _case("scaled_padding", lambda m: _call(m, (90,), 12, 9, 4, 3, True), "collisions"),
        _plain.but("int32", indices=torch.Tensor.int),
        _case("one_position", lambda m: _call(m, (), 5)),
        _case("no_positions", lambda m: _call(m, (0, 4), 5), "empty"),
        _case("no_columns", lambda m: _call(m, (4, 3), 0), "empty"),
        _case("special", lambda m: special(_call(m, (6,), 9, 3), "grad_output")),
        _case("special_narrow", lambda m: special(_call(m, (40,), 1, 3), "grad_output")),
        _case("image", lambda m: _call(m, (2, 3, 4), 5), variants=(*LAYOUTS, "cpu", "mps")),
        _case("odd_1", lambda m: _call(m, (1,), 1, 1), "odd_sizes"),
        _case("odd_63", lambda m: _call(m, (63,), 63, 63, 9), "odd_sizes", "collisions"),
        _case("odd_1000", lambda m: _call(m, (65,), 1000, 3), "odd_sizes", dtypes=FLOATING[:3]),
        _case("integers", lambda m: _call(m, (9,), 4), dtypes=(torch.int64,)),
    ),
    errors=(
        _plain.but("indices_not_integer", indices=torch.Tensor.double),
        _plain.but("indices_of_bytes", indices=torch.Tensor.byte),
        _plain.but("fewer_indices", indices=lambda indices: indices[1:]),
        _plain.but("no_dimension", grad_output=lambda x: x[0, 0], indices=lambda x: x[0]),
        _plain.but("columns_apart", grad_output=lambda x: x.view(9, 2, 2)),
        _plain.but("negative_num_weights", num_weights=-1),
    ),
    bench=(
        _bench("bert_50k_768", lambda m: _zipf(m, 50_000, 768, 30_522)),
        _bench("bert_padded_50k_768", lambda m: _zipf(m, 50_000, 768, 30_522, padding_idx=0)),
        _bench("llama_8k_4096", lambda m: _zipf(m, 8192, 4096, 128_256)),
        _bench("positions_64k_768", lambda m: _call(m, (128, 512), 768, 512)),
        _bench("token_types_64k_768", lambda m: _call(m, (128, 512), 768, 2)),
        _bench("recommender_2m_16", lambda m: _zipf(m, 2_000_000, 16, 1_000_000)),
        _bench("scaled_50k_300", lambda m: _zipf(m, 50_000, 300, 100_000, scale_grad_by_freq=True)),
    ),
    not_applicable={"negative_dim": "the operator takes no dimension"},
)
