"""Samples of the backward of embeddings."""

from __future__ import annotations

from typing import Any

import torch

from detmode.rules.index.arguments import zipf
from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker, Sample, Samples

OP = "aten::embedding_dense_backward"
INF, NAN = float("inf"), float("nan")


def _call(
    m: Maker,
    positions: tuple[int, ...],
    width: int,
    num_weights: int = 7,
    spread: int | None = None,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
) -> dict[str, Any]:
    """Indices below ``spread``."""
    return {
        "grad_output": m.normal(*positions, width),
        "indices": m.integers(0, spread or num_weights, *positions),
        "num_weights": num_weights,
        "padding_idx": padding_idx,
        "scale_grad_by_freq": scale_grad_by_freq,
    }


def _zipf(m: Maker, positions: int, width: int, num_weights: int, **more: Any) -> dict[str, Any]:
    call = _call(m, (positions,), width, num_weights, **more)
    return {**call, "indices": zipf(m, positions, num_weights)}


def _strided(call: dict[str, Any]) -> dict[str, Any]:
    grad_output, indices = call["grad_output"], call["indices"]
    back = tuple(reversed(range(grad_output.dim())))
    return {
        **call,
        "grad_output": grad_output.permute(back).contiguous().permute(back),
        "indices": indices.repeat_interleave(2, -1)[..., ::2],
    }


def _last(call: dict[str, Any]) -> dict[str, Any]:
    grad_output = call["grad_output"].contiguous(memory_format=torch.channels_last)
    return {**call, "grad_output": grad_output}


def _special(call: dict[str, Any], m: Maker) -> dict[str, Any]:
    values = [1.0, NAN, -0.0, 2.0, INF, -INF, INF, 1e-40, 6e-8, -0.0, -0.0, 3e38, 3e38, 3.0]
    call["grad_output"].view(-1)[: len(values)] = m.tensor(values)
    return call


def _with(m: Maker, **changed: Any) -> dict[str, Any]:
    return {**_call(m, (9,), 4), **changed}


def _sample(name: str, make: Any, *covers: str, dtypes: Any = FLOATING) -> Sample:
    return Sample(name=name, op=OP, make=make, dtypes=dtypes, covers=covers)


def _bench(name: str, make: Any) -> Sample:
    return _sample(name, make, dtypes=FLOATING[:3])


SAMPLES = Samples(
    cases=(
        _sample("few_rows", lambda m: _call(m, (4, 250), 16, spread=3), "collisions"),
        _sample("one_row", lambda m: _call(m, (1, 400), 33, spread=1), "collisions"),
        _sample("narrow", lambda m: _call(m, (300,), 1, 5), "collisions"),
        _sample("zipf", lambda m: _zipf(m, 900, 24, 200), "collisions"),
        _sample("many_rows", lambda m: _call(m, (30,), 5, 40_000), dtypes=FLOATING[2:3]),
        _sample("padding", lambda m: _call(m, (3, 60), 20, padding_idx=2), "collisions"),
        _sample("padding_narrow", lambda m: _call(m, (99,), 1, 4, padding_idx=0), "collisions"),
        _sample("padding_only", lambda m: _call(m, (9,), 4, 4, 1, padding_idx=0)),
        _sample("scaled", lambda m: _call(m, (200,), 12, 9, 4, -1, True), "collisions"),
        _sample("scaled_narrow", lambda m: _call(m, (200,), 1, 5, 4, -1, True), "collisions"),
        _sample("scaled_padding", lambda m: _call(m, (90,), 12, 9, 4, 3, True), "collisions"),
        _sample("int32", lambda m: _with(m, indices=m.integers(0, 7, 9).int())),
        _sample("one_position", lambda m: _call(m, (), 5)),
        _sample("no_positions", lambda m: _call(m, (0, 4), 5), "empty"),
        _sample("no_columns", lambda m: _call(m, (4, 3), 0), "empty"),
        _sample("special", lambda m: _special(_call(m, (6,), 9, 3), m)),
        _sample("special_narrow", lambda m: _special(_call(m, (40,), 1, 3), m)),
        _sample("strided", lambda m: _strided(_call(m, (7, 9), 6)), "non_contiguous"),
        _sample("last", lambda m: _last(_call(m, (2, 3, 4), 5)), "channels_last"),
        _sample("odd_1", lambda m: _call(m, (1,), 1, 1), "odd_sizes"),
        _sample("odd_63", lambda m: _call(m, (63,), 63, 63, 9), "odd_sizes", "collisions"),
        _sample("odd_1000", lambda m: _call(m, (65,), 1000, 3), "odd_sizes", dtypes=FLOATING[:3]),
        Sample(name="integers", op=OP, make=lambda m: _call(m, (9,), 4), dtypes=(torch.int64,)),
        Sample(name="metal", op=OP, make=lambda m: _call(m, (9,), 4), device="mps"),
        Sample(name="host", op=OP, make=lambda m: _call(m, (9,), 4), device="cpu"),
    ),
    errors=(
        _sample("indices_not_integer", lambda m: _with(m, indices=m.normal(9))),
        _sample("indices_of_bytes", lambda m: _with(m, indices=m.integers(0, 7, 9).byte())),
        _sample("fewer_indices", lambda m: _with(m, indices=m.integers(0, 7, 8))),
        _sample(
            "no_dimension", lambda m: _with(m, grad_output=m.normal(), indices=m.integers(0, 7))
        ),
        _sample("columns_apart", lambda m: _with(m, grad_output=m.normal(9, 2, 2))),
        _sample("negative_num_weights", lambda m: _with(m, num_weights=-1)),
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
