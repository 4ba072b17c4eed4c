"""Samples of index_reduce."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from detmode.table.compositions import SEGMENT, combined, reduced
from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.inputs import LAYOUTS, Arguments, factors, indexed_rows, special
from detmode.table.samples import Maker, Sample, Samples, sample

ALL = FLOATING + INTEGRAL
REDUCTIONS = ("prod", "mean", "amax", "amin")


def _rows(m: Maker, *sizes: Any, reduce: str = "prod", **more: Any) -> Arguments:
    # Factors of which many can be multiplied.
    return factors(indexed_rows(m, *sizes, reduce=reduce, **more), "source")


_case = partial(sample, op="aten::index_reduce", dtypes=ALL)
_reals = partial(_case, dtypes=FLOATING)
_bench = partial(_case, dtypes=FLOATING[:3])


def _reductions(reduce: str) -> tuple[Sample, ...]:
    def rows(m: Maker, *sizes: Any, **more: Any) -> Arguments:
        return _rows(m, *sizes, reduce=reduce, **more)

    found = (
        _case(f"middle_dim_{reduce}", lambda m: rows(m, [3, 5, 4], 1, 90), "collisions"),
        _case(
            f"without_self_{reduce}",
            lambda m: rows(m, [4, 6, 3], -2, 40, 5, include_self=False),
            *("negative_dim", "collisions"),
        ),
        _case(
            f"images_{reduce}",
            lambda m: rows(m, [2, 6, 3, 5], 1, 50),
            dtypes=FLOATING[2:3] + INTEGRAL[:1],
            variants=(*LAYOUTS, "int32"),
        ),
        _case(
            f"lines_{reduce}",
            lambda m: rows(m, [5, 4], 0, 30),
            dtypes=FLOATING[:1],
            variants=("shifted",),
        ),
        _reals(f"special_{reduce}", lambda m: special(rows(m, [9], 0, 30), "source")),
        _reals(
            f"special_without_self_{reduce}",
            lambda m: special(rows(m, [9], 0, 30, include_self=False), "source"),
        ),
    )
    plain = partial(_case, reduce, lambda m: indexed_rows(m, [4], 0, 9, reduce=reduce))
    return *found, plain(device="cpu"), plain(device="mps", dtypes=FLOATING + COMPLEX)


def _errors(reduce: str) -> tuple[Sample, ...]:
    rows = _case("rows", lambda m: _rows(m, [4, 3], 0, 9, reduce=reduce))
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


def _graph(reduce: str) -> Sample:
    return _bench(
        f"graph_{reduce}_1m_edges_64",
        lambda m: _rows(m, [100_000, 64], 0, 1_000_000, reduce=reduce),
    )


def _composed(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool
) -> Tensor:
    rows = self.movedim(dim, 0)
    found = reduced(index, source.movedim(dim, 0), len(rows), SEGMENT.get(reduce, reduce))
    return combined(rows, *found, reduce, include_self).movedim(0, dim)


SAMPLES = Samples(
    cases=(
        _case("one_destination", lambda m: _rows(m, [3], 0, 1000, 1), "collisions"),
        _case("one_destination_wide", lambda m: _rows(m, [3, 9], 0, 300, 1), "collisions"),
        _reals("long_runs", lambda m: _rows(m, [3], 0, 5000, 2), "collisions", dtypes=FLOATING[2:]),
        _reals("zipf", lambda m: _rows(m, [90, 3], 0, 700, index=m.zipf(700, 90)), "collisions"),
        _case("odd_1", lambda m: _rows(m, [1], 0, 1), "odd_sizes"),
        _reals("odd_63", lambda m: _rows(m, [63, 63], 0, 63, 9), "odd_sizes"),
        _reals("odd_1000", lambda m: _rows(m, [2, 1000], 1, 1000, 10), "odd_sizes"),
        _reals(
            "wide_values",
            lambda m: indexed_rows(m, [9, 3], 0, 20, reduce="prod"),
            dtypes=FLOATING[1:],
        ),
        _reals("empty_index", lambda m: _rows(m, [4, 3], 0, 0), "empty"),
        _reals("empty_rows", lambda m: _rows(m, [4, 0], 0, 7), "empty"),
        _reals("scalar", lambda m: _rows(m, [1], 0, 1, self=m.normal(), source=m.normal())),
        *(each for reduce in REDUCTIONS for each in _reductions(reduce)),
    ),
    errors=tuple(each for reduce in REDUCTIONS for each in _errors(reduce)),
    bench=tuple(map(_graph, REDUCTIONS[:3])),
    compositions={"aten::index_reduce": _composed},
)
