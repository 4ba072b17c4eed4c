"""Samples of scatter_reduce."""

from __future__ import annotations

from functools import partial
from typing import Any

from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.inputs import (
    LAYOUTS,
    Arguments,
    factors,
    scattered,
    scattered_batches,
    scattered_rows,
    special,
)
from detmode.table.samples import Maker, Sample, Samples, made_by, sample

SUMS = FLOATING + COMPLEX
ALL = FLOATING + INTEGRAL
NARROW = FLOATING[1:3]
REDUCTIONS = {"sum": SUMS, "mean": SUMS, "prod": ALL, "amax": FLOATING, "amin": FLOATING}

OP = "aten::scatter_reduce.two"

_case = partial(sample, op=OP, dtypes=SUMS)
_reals = partial(_case, dtypes=FLOATING)
_bench = partial(_case, dtypes=FLOATING[:3])


def _reductions(reduce: str) -> tuple[Sample, ...]:
    case = partial(_case, dtypes=REDUCTIONS[reduce])
    onto = partial(scattered, reduce=reduce)
    rows = partial(scattered_rows, reduce=reduce, include_self=False)
    return (
        case(
            f"{reduce}_elements_with_self",
            lambda m: factors(onto(m, [7, 9], 0, [60, 8], [61, 9], spread=5), "src"),
            "collisions",
        ),
        case(
            f"{reduce}_rows_without_self",
            lambda m: factors(rows(m, [7, 24], 0, 100, 5), "src"),
            "collisions",
        ),
    )


def _special(reduce: str) -> Sample:
    onto = partial(scattered, reduce=reduce)
    return _reals(
        f"special_{reduce}", lambda m: special(factors(onto(m, [9], 0, [30]), "src"), "src")
    )


def _plain(reduce: str, dtypes: Any, **more: Any) -> Sample:
    return _case(reduce, lambda m: scattered(m, [7], 0, [60], reduce=reduce), dtypes=dtypes, **more)


def _graph(reduce: str) -> Sample:
    return _bench(
        f"graph_{reduce}_1m_edges_64",
        lambda m: scattered_rows(m, [100_000, 64], 0, 1_000_000, reduce=reduce),
    )


def _batches(m: Maker) -> Arguments:
    return factors(scattered_batches(m, reduce="prod"), "src")


_products = made_by(
    lambda m, *sizes: factors(scattered(m, *sizes, reduce="prod"), "src"),
    op=OP,
    dtypes=FLOATING,
)
_sums, _odd = ({"covers": item} for item in ("collisions", "odd_sizes"))
_BYTES = FLOATING + INTEGRAL[:1]
_row = _reals("row", lambda m: scattered(m, [4], 0, [9], reduce="prod"))

SAMPLES = Samples(
    cases=(
        *(sample for reduce in REDUCTIONS for sample in _reductions(reduce)),
        _products("prod_one_destination", [4], 0, [1000], None, 1, **_sums, dtypes=_BYTES),
        _products("prod_long_runs", [3], 0, [5000], None, 2, **_sums, dtypes=FLOATING[2:]),
        _products("prod_odd_1", [1], 0, [1], **_odd),
        _products("prod_odd_63", [63, 5], 0, [63, 5], **_odd),
        _products("prod_odd_1000", [3, 99], 1, [3, 1000], **_odd, dtypes=NARROW),
        _products("prod_negative_dim", [4, 5, 6], -2, [4, 9, 6], covers="negative_dim", dtypes=ALL),
        _reals(
            "mean_many_rows",
            lambda m: scattered(m, [66, 5], 1, [66, 40], reduce="mean", include_self=False),
            "collisions",
        ),
        _case("prod_expanded_batches", _batches, "collisions", dtypes=NARROW),
        _products("prod_empty_rows", [4, 0], 0, [3, 0], covers="empty"),
        _products("prod_scalar", [], 0, []),
        _products("prod_image", [2, 5, 3, 4], 1, [2, 9, 3, 4], variants=(*LAYOUTS, "int32")),
        _case("empty", lambda m: scattered(m, [4], 0, [0], reduce="sum"), "empty"),
        *map(_special, ("mean", "prod", "amax", "amin")),
        _plain("sum", INTEGRAL),
        _plain("mean", INTEGRAL),
        _plain("prod", COMPLEX),
        _plain("amax", INTEGRAL),
        _plain("mean", FLOATING, device="cpu"),
        _plain("prod", SUMS, device="mps"),
    ),
    errors=(
        *(
            _row.but(f"{reduce}_too_large", index=lambda index: index + 4, reduce=reduce)
            for reduce in ("mean", "prod", "amax")
        ),
        _row.but("no_such_reduce", reduce="median"),
        _row.but("beyond_src", src=lambda src: src[1:]),
    ),
    bench=tuple(map(_graph, ("mean", "prod", "amax"))),
)
