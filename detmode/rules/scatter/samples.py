"""Samples of scatter_add, scatter_reduce and scatter."""

from __future__ import annotations

from typing import Any

from detmode.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.rules.scatter.arguments import (
    batched,
    expanded,
    last,
    narrow,
    onto,
    special,
    strided,
)
from detmode.sample import Sample

SUMS = FLOATING + COMPLEX


def _adds(name: str, make: Any, *covers: str, dtypes: Any = SUMS, device: str = "cuda") -> Sample:
    return Sample(
        name=name, op="aten::scatter_add", make=make, covers=covers, dtypes=dtypes, device=device
    )


def _reduces(name: str, make: Any, *, dtypes: Any = SUMS, device: str = "cuda") -> Sample:
    return Sample(name=name, op="aten::scatter_reduce.two", make=make, dtypes=dtypes, device=device)


SAMPLES: tuple[Sample, ...] = (
    _adds("one_destination", lambda m: onto(m, [4], 0, [1000], spread=1), "collisions"),
    _adds("few_destinations", lambda m: onto(m, [4, 20], 0, [300, 20], spread=2), "collisions"),
    _adds("odd_1", lambda m: onto(m, [1], 0, [1]), "odd_sizes"),
    _adds("odd_63", lambda m: onto(m, [63, 5], 0, [63, 5]), "odd_sizes"),
    _adds("odd_1000", lambda m: onto(m, [3, 99], 1, [3, 1000]), "odd_sizes", "collisions"),
    _adds("smaller_index", lambda m: onto(m, [5, 6, 7], 1, [3, 20, 4], [5, 21, 6]), "collisions"),
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
    _adds("non_contiguous", lambda m: strided(onto(m, [4, 5, 6], 0, [9, 5, 6])), "non_contiguous"),
    _adds("channels_last", lambda m: last(onto(m, [2, 5, 3, 4], 1, [2, 9, 3, 4])), "channels_last"),
    _adds("special", lambda m: special(onto(m, [9], 0, [30]), m), dtypes=FLOATING),
    _adds("special_rows", lambda m: special(expanded(m, [3, 30], 0, 9), m), dtypes=FLOATING),
    _adds("integers", lambda m: onto(m, [4], 0, [30]), dtypes=INTEGRAL),
    _adds("cpu", lambda m: onto(m, [4], 0, [30]), device="cpu"),
    _adds("mps", lambda m: onto(m, [4], 0, [30]), device="mps"),
    *(
        _reduces(
            f"{reduce}_{name}_{'with' if include_self else 'without'}_self",
            lambda m, make=make, reduce=reduce, include_self=include_self: (
                make(m) | {"reduce": reduce, "include_self": include_self}
            ),
        )
        for reduce in ("sum", "mean")
        for include_self in (True, False)
        for name, make in (
            ("elements", lambda m: onto(m, [7, 9], 0, [60, 8], [61, 9], spread=5)),
            ("rows", lambda m: expanded(m, [7, 40], 0, 200, 5)),
        )
    ),
    _reduces(
        "special_mean", lambda m: special(onto(m, [9], 0, [30], reduce="mean"), m), dtypes=FLOATING
    ),
    *(
        _reduces(
            reduce,
            lambda m, reduce=reduce: onto(m, [7], 0, [60], reduce=reduce),
            dtypes=dtypes,
            device=device,
        )
        for reduce, dtypes, device in (
            ("sum", INTEGRAL, "cuda"),
            ("mean", INTEGRAL, "cuda"),
            ("prod", FLOATING + INTEGRAL, "cuda"),
            ("amax", FLOATING + INTEGRAL, "cuda"),
            ("amin", FLOATING + INTEGRAL, "cuda"),
            ("mean", FLOATING, "cpu"),
            ("prod", SUMS, "mps"),
        )
    ),
)

ERRORS: tuple[Sample, ...] = (
    _adds("index_too_large", lambda m: onto(m, [4], 0, [9]) | {"index": m.integers(4, 5, 9)}),
    _adds("index_negative", lambda m: onto(m, [4], 0, [9]) | {"index": m.integers(-1, 0, 9)}),
    _adds("index_not_integer", lambda m: onto(m, [4], 0, [9]) | {"index": m.normal(9)}),
    _adds("index_of_two_dims", lambda m: onto(m, [4], 0, [9]) | {"index": m.integers(0, 4, 9, 1)}),
    _adds("index_beyond_src", lambda m: onto(m, [4], 0, [9], [8])),
    _adds("index_beyond_self", lambda m: onto(m, [4, 3], 0, [9, 4])),
    _adds("dim_out_of_range", lambda m: onto(m, [4], 0, [9]) | {"dim": 1}),
    _adds("nowhere_to_go", lambda m: onto(m, [0], 0, [9])),
    _adds(
        "other_dtype",
        lambda m: onto(m, [4], 0, [9]) | {"src": m.normal(9).double()},
        dtypes=SUMS[:3],
    ),
    _reduces(
        "mean_too_large",
        lambda m: onto(m, [4], 0, [9], reduce="mean") | {"index": m.integers(4, 5, 9)},
        dtypes=FLOATING,
    ),
    _reduces("no_such_reduce", lambda m: onto(m, [4], 0, [9], reduce="median"), dtypes=FLOATING),
)

BENCH: tuple[Sample, ...] = (
    _adds(
        "graph_1m_edges_64", lambda m: expanded(m, [100_000, 64], 0, 1_000_000), dtypes=FLOATING[:3]
    ),
    _adds("graph_1m_edges_scalars", lambda m: onto(m, [100_000], 0, [1_000_000])),
    _adds("segmentation_2m_pixels_150", lambda m: onto(m, [150], 0, [1 << 21])),
    _adds("pooling_8x64x16k_to_1k", lambda m: onto(m, [8, 64, 1024], 2, [8, 64, 16384])),
    _adds("gather_targets_4k_of_32k", lambda m: onto(m, [4096, 32_000], 1, [4096, 1])),
    _reduces(
        "graph_mean_1m_edges_64",
        lambda m: expanded(m, [100_000, 64], 0, 1_000_000, reduce="mean"),
        dtypes=FLOATING[:3],
    ),
)
