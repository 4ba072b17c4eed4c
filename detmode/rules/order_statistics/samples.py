"""Samples of values in order."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

from detmode.table.conditions import FLOATING, INTEGRAL
from detmode.table.inputs import LAYOUTS, Arguments
from detmode.table.samples import Maker, Sample, Samples, sample

MEDIAN, NANMEDIAN = "aten::median.dim", "aten::nanmedian.dim"
KTH, TOPK = "aten::kthvalue", "aten::topk"
EVERY = FLOATING + INTEGRAL
FEW = (torch.float16, torch.float32, torch.int64)


def smallest_index(values: Tensor, self: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """The values, and for each the first index along ``dim`` whose element equals it."""
    if self.dim() == 0:
        return values, torch.zeros((), dtype=torch.int64, device="cpu")
    spread = values if keepdim else values.unsqueeze(dim)
    holds = (self == spread) | (self.isnan() & spread.isnan())
    return values, holds.int().argmax(dim, keepdim)


def _select(
    select: Callable[..., Any], self: Tensor, dim: int, keepdim: bool, **more: int
) -> tuple[Tensor, Tensor]:
    values = select(self, dim=dim, keepdim=keepdim, **more)[0]
    return smallest_index(values, self, dim, keepdim)


def _ties(m: Maker, shape: tuple[int, ...], dim: int, values: int = 4, **more: Any) -> Arguments:
    """Few different values: each occurs many times."""
    return {"self": m.integers(0, values, *shape).to(m.dtype), "dim": dim, **more}


def _any(m: Maker, shape: tuple[int, ...], dim: int, **more: Any) -> Arguments:
    return {"self": m.normal(*shape), "dim": dim, **more}


def _special(m: Maker, shape: tuple[int, int]) -> Arguments:
    """Rows with a NaN, with NaN only, with infinities, with zeros of both signs."""
    self = m.normal(*shape)
    self[0, 2::3] = nan
    self[1] = nan
    self[2, ::2], self[2, 1::2] = inf, -inf
    self[3, ::2], self[3, 1::2] = -0.0, 0.0
    self[4, 1:] = -nan
    return {"self": self, "dim": 1}


def _sliced(m: Maker, shape: tuple[int, ...], dim: int) -> Arguments:
    """Every second element of a wider tensor, transposed."""
    wide = m.integers(0, 5, *shape[:-1], 2 * shape[-1]).to(m.dtype)
    return {"self": wide[..., ::2].transpose(0, -1), "dim": dim}


def _cases(op: str) -> tuple[Sample, ...]:
    case, reals = partial(sample, op=op, dtypes=FEW), partial(sample, op=op, dtypes=FLOATING)
    every = partial(sample, op=op, dtypes=EVERY)
    return (
        every("ties", lambda m: _ties(m, (4, 63), -1), "collisions", variants=("cpu",)),
        every("few", lambda m: _ties(m, (6, 9), 1, 3), "collisions"),
        case("all_equal", lambda m: _ties(m, (3, 300), 1, 1), "collisions"),
        reals("different", lambda m: _any(m, (5, 130), 1)),
        case("even_keepdim", lambda m: _ties(m, (3, 64), 1, 9, keepdim=True)),
        case("two", lambda m: _any(m, (5, 2), -1)),
        case("one", lambda m: _any(m, (5, 1), -1, keepdim=True)),
        case("scalar", lambda m: _any(m, (), -1, keepdim=True)),
        case("first_dim", lambda m: _ties(m, (40, 3, 5), -3), "negative_dim"),
        case("filter_3x3", lambda m: _ties(m, (2, 9, 7, 8), 2 - 4), "negative_dim"),
        case("empty_batch", lambda m: _any(m, (0, 7), 1), "empty"),
        case("sliced", lambda m: _sliced(m, (3, 4, 50), 0), "non_contiguous"),
        case("sliced_few", lambda m: _sliced(m, (3, 4, 20), 0), "non_contiguous"),
        case("image", lambda m: _ties(m, (2, 40, 3, 4), 1), variants=LAYOUTS),
        case("odd_1", lambda m: _ties(m, (1, 1000), 1, 99), "odd_sizes"),
        case("odd_63", lambda m: _any(m, (63, 33), 1), "odd_sizes"),
        reals("special_few", lambda m: _special(m, (6, 9))),
        reals("special", lambda m: _special(m, (6, 65))),
        case("uncached", lambda m: _ties(m, (1, 4097), 1, 50), dtypes=(torch.float64,)),
    )


def _errors(op: str) -> tuple[Sample, ...]:
    case = partial(sample, op=op)
    unknown = partial(case, dtypes=(torch.bool, torch.complex64))
    return (
        case("size_0", lambda m: _any(m, (3, 0), 1)),
        case("empty_size_0", lambda m: _any(m, (0, 0), 1)),
        case("no_such_dim", lambda m: _any(m, (3, 4), 2)),
        case("no_such_dim_of_scalar", lambda m: _any(m, (), 1)),
        unknown("dtype", lambda m: _any(m, (3, 4), 1)),
        unknown("dtype_of_scalar", lambda m: _any(m, (), 0)),
    )


def _bench(op: str) -> tuple[Sample, ...]:
    case = partial(sample, op=op, dtypes=(torch.float16, torch.float32))
    return (
        case("filter_5x5_image", lambda m: _any(m, (8, 3, 25, 512, 512), 2)),
        case("ensemble_of_10", lambda m: _any(m, (10, 256, 1000), 0)),
        case("tokens_4096", lambda m: _any(m, (8192, 4096), -1)),
        case("robust_gradient_64_clients", lambda m: _any(m, (64, 1_000_000), 0)),
        case("one_row_16m", lambda m: _any(m, (1, 1 << 24), 1)),
    )


_ranked = partial(sample, "ties", lambda m: _ties(m, (4, 63), -1, k=5), "collisions")


def _quantized(make: Maker) -> Arguments:
    with warnings.catch_warnings():
        # Quantized tensors are deprecated since 2.13.
        warnings.simplefilter("ignore", UserWarning)
        values = torch.quantize_per_tensor(make.normal(4, 9), 0.5, 3, torch.quint8)
    return {"self": values, "k": 3}


SAMPLES = Samples(
    cases=(
        *_cases(MEDIAN),
        *_cases(NANMEDIAN),
        sample(
            "long", lambda m: _ties(m, (2, 2**15 + 7), 1, 200), op=MEDIAN, dtypes=(torch.int16,)
        ),
        _ranked(op=KTH, dtypes=FEW, variants=("cpu", "mps")),
        sample("largest", lambda m: _ties(m, (4, 9), 0, k=4, keepdim=True), op=KTH, dtypes=FEW),
        _ranked(op=TOPK, dtypes=FLOATING[1:]),
        sample("quantized", _quantized, op=TOPK, device="cpu"),
    ),
    errors=(*_errors(MEDIAN), *_errors(NANMEDIAN)),
    bench=(*_bench(MEDIAN), *_bench(NANMEDIAN)),
    references={
        MEDIAN: partial(_select, torch.median),
        NANMEDIAN: partial(_select, torch.nanmedian),
        KTH: partial(_select, torch.kthvalue),
    },
)
