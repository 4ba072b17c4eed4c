"""Samples of scatter_add, and of scatter with reduce=."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.inputs import (
    LAYOUTS,
    Arguments,
    factors,
    routed_rows,
    scattered,
    scattered_rows,
    special,
)
from detmode.table.samples import Maker, Sample, Samples, made_by, sample
from detmode.table.shared_samples import scatters, wrong_scatters

SUMS = FLOATING + COMPLEX
ALL = (*SUMS, *INTEGRAL, torch.bool)
REDUCED = "aten::scatter.reduce"

_adds = partial(sample, op="aten::scatter_add", dtypes=SUMS)
_reals = partial(_adds, dtypes=FLOATING)
_image = _adds("image", lambda m: scattered(m, [2, 5, 3, 4], 1, [2, 9, 3, 4]), variants=LAYOUTS)


def _value(m: Maker) -> Arguments:
    # A scalar, with reduce.
    arguments = scattered(m, [5], 0, [30], reduce="add", value=2)
    del arguments["src"]
    return arguments


def _factored(m: Maker, *sizes: Any, **more: Any) -> Arguments:
    return factors(scattered(m, *sizes, **more), "src")


def _factored_rows(m: Maker, *sizes: Any, **more: Any) -> Arguments:
    return factors(scattered_rows(m, *sizes, **more), "src")


_onto = made_by(_factored, op=REDUCED, dtypes=FLOATING)


def _reductions(reduce: str) -> tuple[Sample, ...]:
    case = partial(_onto, reduce=reduce)
    some = FLOATING + INTEGRAL[:1]
    rows = partial(made_by(_factored_rows, op=REDUCED, dtypes=some), reduce=reduce)
    block = {"dtypes": FLOATING[2:3], "variants": ("non_contiguous",)}
    return (
        case(reduce, [7], 0, [60], dtypes=ALL, variants=("cpu", "mps")),
        case(f"{reduce}_elements", [7, 9], 1, [5, 200], [6, 210], spread=5),
        rows(f"{reduce}_rows", [7, 9], 0, 90, 5),
        case(f"{reduce}_block", [4, 5, 6], -3, [9, 5, 6], **block),
        case(f"{reduce}_special", [9], 0, [30], form=partial(special, name="src")),
        case(f"{reduce}_nothing", [5], 0, [0], dtypes=ALL),
    )


def _errors(reduce: str) -> tuple[Sample, ...]:
    sample = made_by(scattered, op=REDUCED, dtypes=FLOATING[2:3] + INTEGRAL[4:])
    row = sample("row", [4], 0, [9], reduce=reduce)
    return (
        row.but(f"{reduce}_too_large", index=lambda index: index + 4),
        row.but(f"{reduce}_beyond_src", src=lambda src: src[1:]),
    )


SAMPLES = Samples(
    cases=(
        *scatters(_adds),
        _adds("few_places", lambda m: scattered(m, [4, 20], 0, [300, 20], spread=2), "collisions"),
        _adds("few_of_many", lambda m: scattered(m, [40, 3000], 1, [40, 1]), dtypes=SUMS[2:5]),
        _adds("many_rows", lambda m: scattered(m, [66, 5], 1, [66, 40]), "collisions"),
        _adds("expanded", lambda m: scattered_rows(m, [9, 40], 0, 700), "collisions"),
        _adds("expanded_one", lambda m: scattered_rows(m, [3, 33], 0, 5000, 1), dtypes=SUMS[2:4]),
        _adds("expanded_last", lambda m: scattered_rows(m, [5, 9], 1, 50), "collisions"),
        _image,
        _adds("row", lambda m: scattered(m, [4], 0, [9]), variants=("int32", "cpu", "mps")),
        _reals("special", lambda m: special(scattered(m, [9], 0, [30]), "src")),
        _reals("special_rows", lambda m: special(scattered_rows(m, [3, 30], 0, 9), "src")),
        _adds("integers", lambda m: scattered(m, [4], 0, [30]), dtypes=INTEGRAL),
        *_reductions("add"),
        *_reductions("multiply"),
        sample(
            "value", _value, op="aten::scatter.value_reduce", dtypes=SUMS, variants=("cpu", "mps")
        ),
    ),
    errors=(
        *wrong_scatters(_adds),
        *_errors("add"),
        *_errors("multiply"),
        made_by(scattered, op=REDUCED, dtypes=SUMS)("no_such_reduce", [4], 0, [9], reduce="mean"),
    ),
    bench=(
        _adds(
            "graph_1m_edges_64",
            lambda m: scattered_rows(m, [100_000, 64], 0, 1_000_000),
            dtypes=FLOATING[:3],
        ),
        _adds(
            "experts_4096_tokens_top6_2048",
            lambda m: routed_rows(m, 4096, 6, 2048),
            dtypes=FLOATING[:3],
        ),
        _adds("graph_1m_edges_scalars", lambda m: scattered(m, [100_000], 0, [1_000_000])),
        _adds("segmentation_2m_pixels_150", lambda m: scattered(m, [150], 0, [1 << 21])),
        _adds("pooling_8x64x16k_to_1k", lambda m: scattered(m, [8, 64, 1024], 2, [8, 64, 16384])),
        _adds("router_16k_top8_of_64", lambda m: scattered(m, [1 << 14, 64], 1, [1 << 14, 8])),
        _adds("gather_targets_4k_of_32k", lambda m: scattered(m, [4096, 32_000], 1, [4096, 1])),
        _adds("gather_targets_4k_of_152k", lambda m: scattered(m, [4096, 151_936], 1, [4096, 1])),
        _adds(
            "attention_8m_edges_4_heads",
            lambda m: scattered_rows(m, [2_449_029, 4], 0, 8_000_000),
            dtypes=FLOATING[:3],
        ),
        _adds(
            "products_2m_edges_100",
            lambda m: scattered_rows(m, [2_449_029, 100], 0, 2_000_000),
            dtypes=FLOATING[:3],
        ),
        _adds("pooling_500k_nodes_64_to_4k", lambda m: scattered_rows(m, [4096, 64], 0, 500_000)),
        _onto("multiply_2m_to_150", [150], 0, [1 << 21], reduce="multiply"),
    ),
)
