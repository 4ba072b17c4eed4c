"""Samples of index_reduce."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.inputs import LAYOUTS, Arguments, factors, indexed_rows, special
from detmode.table.samples import Maker, Sample, Samples, made_by, sample

ALL = FLOATING + INTEGRAL
REDUCTIONS = ("prod", "mean", "amax", "amin")
OP = "aten::index_reduce"


def _rows(m: Maker, *sizes: Any, reduce: str = "prod", **more: Any) -> Arguments:
    # Factors of which many can be multiplied.
    return factors(indexed_rows(m, *sizes, reduce=reduce, **more), "source")


_case, _reals = made_by(_rows, op=OP, dtypes=ALL), made_by(_rows, op=OP, dtypes=FLOATING)
_bench = made_by(_rows, op=OP, dtypes=FLOATING[:3])
_sums, _odd = ({"covers": item} for item in ("collisions", "odd_sizes"))
_special = partial(special, name="source")
_plain = partial(sample, op=OP, dtypes=FLOATING)


def _reductions(reduce: str) -> tuple[Sample, ...]:
    case, reals = partial(_case, reduce=reduce), partial(_reals, reduce=reduce)
    onto, few = {"include_self": False}, FLOATING[2:3] + INTEGRAL[:1]
    samples = (
        case(f"middle_dim_{reduce}", [3, 5, 4], 1, 90, **_sums),
        case(
            f"without_self_{reduce}", [4, 6, 3], -2, 40, 5, **onto, covers="negative_dim collisions"
        ),
        case(f"images_{reduce}", [2, 6, 3, 5], 1, 50, dtypes=few, variants=(*LAYOUTS, "int32")),
        case(f"lines_{reduce}", [5, 4], 0, 30, dtypes=FLOATING[:1], variants=("shifted",)),
        reals(f"special_{reduce}", [9], 0, 30, form=_special),
        reals(f"special_without_self_{reduce}", [9], 0, 30, **onto, form=_special),
    )
    plain = partial(sample, reduce, lambda m: indexed_rows(m, [4], 0, 9, reduce=reduce), op=OP)
    on_mps = plain(device="mps", dtypes=FLOATING + COMPLEX)
    return *samples, plain(device="cpu", dtypes=ALL), on_mps


def _errors(reduce: str) -> tuple[Sample, ...]:
    rows = _case("rows", [4, 3], 0, 9, reduce=reduce)
    changes: dict[str, dict[str, Any]] = {
        "index_too_large": {"index": lambda index: index + 4},
        "index_negative": {"index": lambda index: ~index},
        "index_not_integer": {"index": Tensor.float},
        "index_of_two_dims": {"index": lambda index: index[:, None]},
        "index_too_short": {"index": lambda index: index[1:]},
        "dim_out_of_range": {"dim": 2},
        "other_row": {"source": lambda source: source.repeat(1, 2)},
        "other_dims": {"source": lambda source: source[:, 0], "dim": -2},
        "row_for_a_scalar": {"self": lambda self: self[0, 0]},
        "other_dtype": {"source": Tensor.half},
        "nowhere_to_go": {"self": lambda self: self[:0]},
    }
    dtypes = FLOATING[2:3] + INTEGRAL[4:]
    return tuple(rows.but(f"{k}_{reduce}", dtypes=dtypes, **v) for k, v in changes.items())


SAMPLES = Samples(
    cases=(
        _case("one_destination", [3], 0, 1000, 1, **_sums),
        _case("one_destination_wide", [3, 9], 0, 300, 1, **_sums),
        _reals("long_runs", [3], 0, 5000, 2, **_sums, dtypes=FLOATING[2:]),
        _plain("zipf", lambda m: _rows(m, [90, 3], 0, 700, index=m.zipf(700, 90)), "collisions"),
        _case("odd_1", [1], 0, 1, **_odd),
        _reals("odd_63", [63, 63], 0, 63, 9, **_odd),
        _reals("odd_1000", [2, 1000], 1, 1000, 10, **_odd),
        made_by(indexed_rows, op=OP)(
            "wide_values", [9, 3], 0, 20, reduce="prod", dtypes=FLOATING[1:]
        ),
        _reals("empty_index", [4, 3], 0, 0, covers="empty"),
        _reals("empty_rows", [4, 0], 0, 7, covers="empty"),
        _plain("scalar", lambda m: _rows(m, [1], 0, 1, self=m.normal(), source=m.normal())),
        *(sample for reduce in REDUCTIONS for sample in _reductions(reduce)),
    ),
    errors=tuple(sample for reduce in REDUCTIONS for sample in _errors(reduce)),
    bench=tuple(
        _bench(f"graph_{reduce}_1m_edges_64", [100_000, 64], 0, 1_000_000, reduce=reduce)
        for reduce in REDUCTIONS[:3]
    ),
)
