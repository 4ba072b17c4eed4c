"""Samples of scatter_add, and of scatter with reduce=."""

from __future__ import annotations

from typing import Any

import torch

from detmode.rules.index_reduce.arguments import factors
from detmode.rules.scatter.arguments import (
    batched,
    expanded,
    last,
    narrow,
    onto,
    special,
    strided,
)
from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.samples import Maker, Sample, Samples

SUMS = FLOATING + COMPLEX
ALL = (*SUMS, *INTEGRAL, torch.bool)


def _adds(name: str, make: Any, *covers: str, dtypes: Any = SUMS, device: str = "cuda") -> Sample:
    return Sample(
        name=name, op="aten::scatter_add", make=make, covers=covers, dtypes=dtypes, device=device
    )


def _scatters(name: str, make: Any, *, dtypes: Any = SUMS, device: str = "cuda") -> Sample:
    return Sample(name=name, op="aten::scatter.reduce", make=make, dtypes=dtypes, device=device)


def _with(
    make: Maker, reduce: str, shape: Any, dim: int, *sizes: Any, **more: Any
) -> dict[str, Any]:
    return factors(onto(make, shape, dim, *sizes, reduce=reduce, **more), "src")


def value(make: Maker) -> dict[str, Any]:
    """Scatter of a scalar, with reduce."""
    arguments = onto(make, [5], 0, [30], reduce="add", value=2)
    del arguments["src"]
    return arguments


SAMPLES = Samples(
    cases=(
        _adds("one_destination", lambda m: onto(m, [4], 0, [1000], spread=1), "collisions"),
        _adds("few_destinations", lambda m: onto(m, [4, 20], 0, [300, 20], spread=2), "collisions"),
        _adds("odd_1", lambda m: onto(m, [1], 0, [1]), "odd_sizes"),
        _adds("odd_63", lambda m: onto(m, [63, 5], 0, [63, 5]), "odd_sizes"),
        _adds("odd_1000", lambda m: onto(m, [3, 99], 1, [3, 1000]), "odd_sizes", "collisions"),
        _adds(
            "smaller_index", lambda m: onto(m, [5, 6, 7], 1, [3, 20, 4], [5, 21, 6]), "collisions"
        ),
        _adds("negative_dim", lambda m: onto(m, [4, 5, 6], -2, [4, 9, 6]), "negative_dim"),
        _adds("few_of_many", lambda m: onto(m, [40, 3000], 1, [40, 1]), dtypes=SUMS[2:5]),
        _adds("expanded", lambda m: expanded(m, [9, 40], 0, 700), "collisions"),
        _adds("expanded_one", lambda m: expanded(m, [3, 33], 0, 5000, 1), dtypes=SUMS[2:4]),
        _adds("expanded_last", lambda m: expanded(m, [5, 9], 1, 50), "collisions"),
        _adds("expanded_batches", batched, "collisions"),
        _adds("empty_index", lambda m: onto(m, [4, 5], 0, [0, 5]), "empty"),
        _adds("empty_rows", lambda m: onto(m, [4, 0], 0, [3, 0]), "empty"),
        _adds("scalar", lambda m: onto(m, [], 0, [])),
        _adds("int32_index", lambda m: narrow(onto(m, [4], 0, [9]))),
        _adds(
            "non_contiguous", lambda m: strided(onto(m, [4, 5, 6], 0, [9, 5, 6])), "non_contiguous"
        ),
        _adds(
            "channels_last", lambda m: last(onto(m, [2, 5, 3, 4], 1, [2, 9, 3, 4])), "channels_last"
        ),
        _adds("special", lambda m: special(onto(m, [9], 0, [30]), m), dtypes=FLOATING),
        _adds("special_rows", lambda m: special(expanded(m, [3, 30], 0, 9), m), dtypes=FLOATING),
        _adds("integers", lambda m: onto(m, [4], 0, [30]), dtypes=INTEGRAL),
        _adds("cpu", lambda m: onto(m, [4], 0, [30]), device="cpu"),
        _adds("mps", lambda m: onto(m, [4], 0, [30]), device="mps"),
        *(
            _scatters(name, make, dtypes=dtypes)
            for reduce in ("add", "multiply")
            for name, make, dtypes in (
                (reduce, lambda m, reduce=reduce: _with(m, reduce, [7], 0, [60]), ALL),
                (
                    f"{reduce}_elements",
                    lambda m, reduce=reduce: _with(
                        m, reduce, [7, 9], 1, [5, 200], [6, 210], spread=5
                    ),
                    FLOATING,
                ),
                (
                    f"{reduce}_rows",
                    lambda m, reduce=reduce: factors(
                        expanded(m, [7, 9], 0, 90, 5, reduce=reduce), "src"
                    ),
                    FLOATING + INTEGRAL[:1],
                ),
                (
                    f"{reduce}_strided",
                    lambda m, reduce=reduce: strided(_with(m, reduce, [4, 5, 6], -3, [9, 5, 6])),
                    FLOATING[2:3],
                ),
                (
                    f"{reduce}_special",
                    lambda m, reduce=reduce: special(_with(m, reduce, [9], 0, [30]), m),
                    FLOATING,
                ),
                (f"{reduce}_nothing", lambda m, reduce=reduce: _with(m, reduce, [5], 0, [0]), ALL),
            )
        ),
        *(
            _scatters(reduce, lambda m, reduce=reduce: _with(m, reduce, [5], 0, [9]), device=device)
            for device in ("cpu", "mps")
            for reduce in ("add", "multiply")
        ),
        *(
            Sample(
                name="value",
                op="aten::scatter.value_reduce",
                make=value,
                dtypes=SUMS,
                device=device,
            )
            for device in ("cuda", "cpu", "mps")
        ),
    ),
    errors=(
        _adds("index_too_large", lambda m: onto(m, [4], 0, [9]) | {"index": m.integers(4, 5, 9)}),
        _adds("index_negative", lambda m: onto(m, [4], 0, [9]) | {"index": m.integers(-1, 0, 9)}),
        _adds("index_not_integer", lambda m: onto(m, [4], 0, [9]) | {"index": m.normal(9)}),
        _adds(
            "index_of_two_dims", lambda m: onto(m, [4], 0, [9]) | {"index": m.integers(0, 4, 9, 1)}
        ),
        _adds("index_beyond_src", lambda m: onto(m, [4], 0, [9], [8])),
        _adds("index_beyond_self", lambda m: onto(m, [4, 3], 0, [9, 4])),
        _adds("dim_out_of_range", lambda m: onto(m, [4], 0, [9]) | {"dim": 1}),
        _adds("nowhere_to_go", lambda m: onto(m, [0], 0, [9])),
        _adds(
            "other_dtype",
            lambda m: onto(m, [4], 0, [9]) | {"src": m.normal(9).double()},
            dtypes=SUMS[:3],
        ),
        *(
            _scatters(name, make, dtypes=FLOATING[2:3] + INTEGRAL[4:])
            for reduce in ("add", "multiply")
            for name, make in (
                (
                    f"{reduce}_too_large",
                    lambda m, reduce=reduce: (
                        _with(m, reduce, [4], 0, [9]) | {"index": m.integers(4, 5, 9)}
                    ),
                ),
                (
                    f"{reduce}_beyond_src",
                    lambda m, reduce=reduce: _with(m, reduce, [4], 0, [9], [8]),
                ),
            )
        ),
        _scatters("no_such_reduce", lambda m: _with(m, "mean", [4], 0, [9])),
    ),
    bench=(
        _adds(
            "graph_1m_edges_64",
            lambda m: expanded(m, [100_000, 64], 0, 1_000_000),
            dtypes=FLOATING[:3],
        ),
        _adds("graph_1m_edges_scalars", lambda m: onto(m, [100_000], 0, [1_000_000])),
        _adds("segmentation_2m_pixels_150", lambda m: onto(m, [150], 0, [1 << 21])),
        _adds("pooling_8x64x16k_to_1k", lambda m: onto(m, [8, 64, 1024], 2, [8, 64, 16384])),
        _adds("gather_targets_4k_of_32k", lambda m: onto(m, [4096, 32_000], 1, [4096, 1])),
        _scatters(
            "multiply_2m_to_150",
            lambda m: _with(m, "multiply", [150], 0, [1 << 21]),
            dtypes=FLOATING,
        ),
    ),
)
