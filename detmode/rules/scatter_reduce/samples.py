"""Samples of scatter_reduce."""

from __future__ import annotations

from typing import Any

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
from detmode.table.samples import Sample, Samples

SUMS = FLOATING + COMPLEX
ALL = FLOATING + INTEGRAL
NARROW = FLOATING[1:3]


def _reduces(name: str, make: Any, *covers: str, dtypes: Any = SUMS, **more: Any) -> Sample:
    return Sample(
        name=name, op="aten::scatter_reduce.two", make=make, covers=covers, dtypes=dtypes, **more
    )


def _products(name: str, make: Any, *covers: str, dtypes: Any = ALL) -> Sample:
    return _reduces(
        f"prod_{name}",
        lambda m: factors(make(m), "src") | {"reduce": "prod"},
        *covers,
        dtypes=dtypes,
    )


SAMPLES = Samples(
    cases=(
        *(
            _reduces(
                f"{reduce}_{name}_{'with' if include_self else 'without'}_self",
                lambda m, make=make, reduce=reduce, include_self=include_self: (
                    factors(make(m), "src") | {"reduce": reduce, "include_self": include_self}
                ),
                "collisions",
                dtypes=dtypes,
            )
            for reduce, dtypes in (
                ("sum", SUMS),
                ("mean", SUMS),
                ("prod", ALL),
                ("amax", FLOATING),
                ("amin", FLOATING),
            )
            for name, include_self, make in (
                ("elements", True, lambda m: onto(m, [7, 9], 0, [60, 8], [61, 9], spread=5)),
                ("rows", False, lambda m: expanded(m, [7, 24], 0, 100, 5)),
            )
        ),
        _products(
            "one_destination",
            lambda m: onto(m, [4], 0, [1000], spread=1),
            "collisions",
            dtypes=FLOATING + INTEGRAL[:1],
        ),
        _products(
            "long_runs",
            lambda m: onto(m, [3], 0, [5000], spread=2),
            "collisions",
            dtypes=FLOATING[2:],
        ),
        _products("odd_1", lambda m: onto(m, [1], 0, [1]), "odd_sizes", dtypes=FLOATING),
        _products("odd_63", lambda m: onto(m, [63, 5], 0, [63, 5]), "odd_sizes", dtypes=FLOATING),
        _products("odd_1000", lambda m: onto(m, [3, 99], 1, [3, 1000]), "odd_sizes", dtypes=NARROW),
        _products("negative_dim", lambda m: onto(m, [4, 5, 6], -2, [4, 9, 6]), "negative_dim"),
        _products("expanded_batches", batched, "collisions", dtypes=NARROW),
        _products("empty_rows", lambda m: onto(m, [4, 0], 0, [3, 0]), "empty", dtypes=FLOATING),
        _products("scalar", lambda m: onto(m, [], 0, []), dtypes=FLOATING),
        _products("int32_index", lambda m: narrow(onto(m, [4], 0, [9])), dtypes=FLOATING[2:3]),
        _products(
            "strided",
            lambda m: strided(onto(m, [4, 5, 6], 0, [9, 5, 6])),
            "non_contiguous",
            dtypes=FLOATING,
        ),
        _products(
            "channels_last",
            lambda m: last(onto(m, [2, 5, 3, 4], 1, [2, 9, 3, 4])),
            "channels_last",
            dtypes=FLOATING,
        ),
        _reduces("empty", lambda m: onto(m, [4], 0, [0], reduce="sum"), "empty"),
        *(
            _reduces(
                f"special_{reduce}",
                lambda m, reduce=reduce: special(
                    factors(onto(m, [9], 0, [30], reduce=reduce), "src"), m
                ),
                dtypes=FLOATING,
            )
            for reduce in ("mean", "prod", "amax", "amin")
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
                ("prod", COMPLEX, "cuda"),
                ("amax", INTEGRAL, "cuda"),
                ("mean", FLOATING, "cpu"),
                ("prod", SUMS, "mps"),
            )
        ),
    ),
    errors=(
        *(
            _reduces(
                f"{reduce}_too_large",
                lambda m, reduce=reduce: (
                    onto(m, [4], 0, [9], reduce=reduce) | {"index": m.integers(4, 5, 9)}
                ),
                dtypes=FLOATING,
            )
            for reduce in ("mean", "prod", "amax")
        ),
        _reduces(
            "no_such_reduce", lambda m: onto(m, [4], 0, [9], reduce="median"), dtypes=FLOATING
        ),
        _reduces("beyond_src", lambda m: onto(m, [4], 0, [9], [8], reduce="prod"), dtypes=FLOATING),
    ),
    bench=tuple(
        _reduces(
            f"graph_{reduce}_1m_edges_64",
            lambda m, reduce=reduce: expanded(m, [100_000, 64], 0, 1_000_000, reduce=reduce),
            dtypes=FLOATING[:3],
        )
        for reduce in ("mean", "prod", "amax")
    ),
)
