"""Samples of index_reduce."""

from __future__ import annotations

from typing import Any

from detmode.rules.index.arguments import add, last, narrow, shifted, special, strided, zipf
from detmode.rules.index_reduce.arguments import factors
from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.samples import Maker, Sample, Samples

ALL = FLOATING + INTEGRAL
REDUCTIONS = ("prod", "mean", "amax", "amin")


def _reduces(name: str, make: Any, *covers: str, dtypes: Any = ALL, **more: Any) -> Sample:
    return Sample(
        name=name, op="aten::index_reduce", make=make, covers=covers, dtypes=dtypes, **more
    )


def rows(
    make: Maker, shape: list[int], dim: int, n: int, spread: int | None = None, **more: Any
) -> dict[str, Any]:
    """index_reduce of ``n`` rows, which many products can take."""
    return factors(add(make, shape, dim, n, spread, **{"reduce": "prod", **more}))


SAMPLES = Samples(
    cases=(
        _reduces("one_destination", lambda m: rows(m, [3], 0, 1000, 1), "collisions"),
        _reduces("one_destination_wide", lambda m: rows(m, [3, 9], 0, 300, 1), "collisions"),
        _reduces(
            "long_runs", lambda m: rows(m, [3], 0, 5000, 2), "collisions", dtypes=FLOATING[2:]
        ),
        _reduces(
            "zipf",
            lambda m: {**rows(m, [90, 3], 0, 700), "index": zipf(m, 700, 90)},
            "collisions",
            dtypes=FLOATING,
        ),
        _reduces("odd_1", lambda m: rows(m, [1], 0, 1), "odd_sizes"),
        _reduces("odd_63", lambda m: rows(m, [63, 63], 0, 63, 9), "odd_sizes", dtypes=FLOATING),
        _reduces(
            "odd_1000", lambda m: rows(m, [2, 1000], 1, 1000, 10), "odd_sizes", dtypes=FLOATING
        ),
        _reduces(
            "wide_values", lambda m: add(m, [9, 3], 0, 20, reduce="prod"), dtypes=FLOATING[1:]
        ),
        _reduces("empty_index", lambda m: rows(m, [4, 3], 0, 0), "empty", dtypes=FLOATING),
        _reduces("empty_rows", lambda m: rows(m, [4, 0], 0, 7), "empty", dtypes=FLOATING),
        _reduces(
            "scalar",
            lambda m: rows(m, [1], 0, 1) | {"self": m.normal(), "source": m.normal()},
            dtypes=FLOATING,
        ),
        *(
            _reduces(
                f"{name}_{reduce}",
                lambda m, make=make, reduce=reduce: make(m) | {"reduce": reduce},
                *covers,
                dtypes=dtypes,
            )
            for reduce in REDUCTIONS
            for name, make, covers, dtypes in (
                ("middle_dim", lambda m: rows(m, [3, 5, 4], 1, 90), ("collisions",), ALL),
                (
                    "without_self",
                    lambda m: rows(m, [4, 6, 3], -2, 40, 5, include_self=False),
                    ("negative_dim", "collisions"),
                    ALL,
                ),
                (
                    "non_contiguous",
                    lambda m: narrow(strided(rows(m, [6, 5, 4], 0, 90), "self", "source")),
                    ("non_contiguous",),
                    FLOATING[2:3] + INTEGRAL[:1],
                ),
                (
                    "channels_last",
                    lambda m: last(rows(m, [2, 6, 3, 5], 1, 50), "self", "source"),
                    ("channels_last",),
                    FLOATING[2:3],
                ),
                ("shifted", lambda m: shifted(rows(m, [5, 4], 0, 30)), (), FLOATING[:1]),
                ("special", lambda m: special(rows(m, [9], 0, 30), m), (), FLOATING),
                (
                    "special_without_self",
                    lambda m: special(rows(m, [9], 0, 30, include_self=False), m),
                    (),
                    FLOATING,
                ),
            )
        ),
        *(
            _reduces(
                reduce,
                lambda m, reduce=reduce: add(m, [4], 0, 9, reduce=reduce),
                dtypes=dtypes,
                device=device,
            )
            for device, dtypes in (("cpu", ALL), ("mps", FLOATING + COMPLEX))
            for reduce in REDUCTIONS
        ),
    ),
    errors=tuple(
        _reduces(
            f"{name}_{reduce}",
            lambda m, make=make, reduce=reduce: make(m) | {"reduce": reduce},
            dtypes=FLOATING[2:3] + INTEGRAL[4:],
        )
        for reduce in REDUCTIONS
        for name, make in (
            ("index_too_large", lambda m: rows(m, [4, 3], 0, 9) | {"index": m.integers(4, 5, 9)}),
            ("index_negative", lambda m: rows(m, [4], 0, 9) | {"index": m.integers(-1, 0, 9)}),
            ("index_not_integer", lambda m: rows(m, [4], 0, 9) | {"index": m.normal(9).float()}),
            ("index_of_two_dims", lambda m: rows(m, [4], 0, 9) | {"index": m.integers(0, 4, 9, 1)}),
            ("index_too_short", lambda m: rows(m, [4, 3], 0, 9) | {"index": m.integers(0, 4, 8)}),
            ("dim_out_of_range", lambda m: rows(m, [4, 3], 0, 9) | {"dim": 2}),
            ("other_row", lambda m: rows(m, [4, 3], 0, 9) | {"source": m.normal(9, 4)}),
            ("other_dims", lambda m: rows(m, [4, 3], -2, 9) | {"source": m.normal(9)}),
            ("row_for_a_scalar", lambda m: rows(m, [1], 0, 1) | {"self": m.normal()}),
            ("other_dtype", lambda m: rows(m, [4], 0, 9) | {"source": m.normal(9).half()}),
            ("nowhere_to_go", lambda m: rows(m, [0, 3], 0, 9) | {"source": m.normal(9, 3)}),
        )
    ),
    bench=tuple(
        _reduces(
            f"graph_{reduce}_1m_edges_64",
            lambda m, reduce=reduce: rows(m, [100_000, 64], 0, 1_000_000, reduce=reduce),
            dtypes=FLOATING[:3],
        )
        for reduce in REDUCTIONS[:3]
    ),
)
