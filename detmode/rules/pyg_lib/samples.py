"""Samples of pyg-lib's sums: graphs of a few nodes with many edges, and references."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from detmode.table.conditions import FLOATING
from detmode.table.inputs import factors
from detmode.table.samples import Maker, Sample, Samples, made_by

Arguments = dict[str, Any]


def _edges(
    make: Maker, shape: Sequence[int], nodes: int, dim: int = -1, onto: bool = False
) -> Arguments:
    arguments = {"src": make.normal(*shape), "index": make.integers(0, nodes, *shape), "dim": dim}
    if onto:
        sizes = list(shape)
        sizes[dim] = nodes
        return {**arguments, "out": make.normal(*sizes)}
    return {**arguments, "dim_size": nodes}


def _segments(make: Maker, shape: Sequence[int], dims: int, segments: int) -> Arguments:
    index = make.integers(0, segments, *shape[:dims]).sort(-1).values
    return {"src": make.normal(*shape), "index": index, "dim_size": segments}


def _factors(make: Maker, *sizes: Any, **more: Any) -> Arguments:
    return factors(_edges(make, *sizes, **more), "src")


_ANY = (*FLOATING, torch.int64)


def _scatters(op: str, make: Any) -> tuple[Sample, ...]:
    case = made_by(make, op=op, dtypes=FLOATING)
    return (
        case("edges", (300,), 7, covers="collisions", dtypes=_ANY, variants=("cpu",)),
        case("features", (63, 5), 9, dim=-2, covers="negative_dim", variants=("non_contiguous",)),
        case("onto", (40, 3), 6, dim=0, onto=True),
        case("nothing", (0, 3), 4, dim=0, covers="empty"),
        case("odd", (1, 1000), 63, covers="odd_sizes"),
    )


def _coo(op: str) -> tuple[Sample, ...]:
    case = made_by(_segments, op=op, dtypes=FLOATING)
    return (
        case("rows", (300, 5), 1, 7, covers="collisions", dtypes=_ANY, variants=("cpu",)),
        case("elements", (2, 90), 2, 8),
        case("no_rows", (0, 5), 1, 4, covers="empty"),
        case("odd_rows", (1000, 63), 1, 63, covers="odd_sizes"),
    )


def _wrong(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    first = samples[0]
    return (first.but("index_too_large", index=lambda index: index + 9, dtypes=FLOATING[2:3]),)


def _reference(arguments: Arguments, dim: int, reduce: str) -> Tensor:
    src, index, out = arguments["src"], arguments["index"], arguments.get("out")
    index = index.view(*index.shape, *[1] * (src.dim() - index.dim())).expand(src.shape)
    if out is None:
        sizes = list(src.shape)
        sizes[dim] = arguments["dim_size"]
        out = src.new_full(sizes, reduce == "prod")
    result: Tensor = out.scatter_reduce(dim, index, src, reduce, include_self=True)
    return result


def scatter_reference(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    *,
    reduce: str,
) -> Tensor:
    """Sums or products of the elements with one index, on the CPU."""
    return _reference({"src": src, "index": index, "out": out, "dim_size": dim_size}, dim, reduce)


def segment_reference(
    src: Tensor,
    index: Tensor,
    out: Tensor | None = None,
    dim_size: int | None = None,
    *,
    mean: bool,
) -> Tensor:
    """Sums or means of the rows with one index, on the CPU."""
    arguments = {"src": src, "index": index, "out": out, "dim_size": dim_size}
    sums = _reference(arguments, index.dim() - 1, "sum")
    if not mean:
        return sums
    ones = {**arguments, "src": torch.ones_like(src), "out": None}
    return sums / _reference(ones, index.dim() - 1, "sum").clamp(min=1)


_CASES = {
    "pyg::scatter_sum": _scatters("pyg::scatter_sum", _edges),
    "pyg::scatter_mul": _scatters("pyg::scatter_mul", _factors),
    "pyg::segment_sum_coo": _coo("pyg::segment_sum_coo"),
    "pyg::segment_mean_coo": _coo("pyg::segment_mean_coo"),
}

SAMPLES = Samples(
    cases=tuple(case for cases in _CASES.values() for case in cases),
    errors=tuple(error for cases in _CASES.values() for error in _wrong(cases)),
    bench=(
        made_by(_edges, op="pyg::scatter_sum", dtypes=(torch.float32,))(
            "edges_16m", (1 << 24,), 1 << 20
        ),
        made_by(_segments, op="pyg::segment_sum_coo", dtypes=(torch.float32,))(
            "rows_1m", (1 << 20, 64), 1, 1 << 16
        ),
    ),
    not_applicable={"channels_last": "src is a matrix of features"},
    references={
        "pyg::scatter_sum": partial(scatter_reference, reduce="sum"),
        "pyg::scatter_mul": partial(scatter_reference, reduce="prod"),
        "pyg::segment_sum_coo": partial(segment_reference, mean=False),
        "pyg::segment_mean_coo": partial(segment_reference, mean=True),
    },
)
