"""Samples of values in order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from detmode.table.conditions import FLOATING, INTEGRAL
from detmode.table.samples import Maker, Sample, Samples

MEDIAN, NANMEDIAN = "aten::median.dim", "aten::nanmedian.dim"
KTH, TOPK = "aten::kthvalue", "aten::topk"
INF, NAN = float("inf"), float("nan")


def smallest_index(
    values: torch.Tensor, self: torch.Tensor, dim: int, keepdim: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The values, and for each the first index along ``dim`` whose element equals it."""
    if self.dim() == 0:
        return values, torch.zeros((), dtype=torch.int64)
    spread = values if keepdim else values.unsqueeze(dim)
    holds = (self == spread) | (self.isnan() & spread.isnan())
    return values, holds.int().argmax(dim, keepdim)


def _select(
    select: Callable[..., Any], self: torch.Tensor, dim: int, keepdim: bool, **more: int
) -> tuple[torch.Tensor, torch.Tensor]:
    values = select(self, dim=dim, keepdim=keepdim, **more)[0]
    return smallest_index(values, self, dim, keepdim)


def _ties(
    make: Maker, shape: tuple[int, ...], dim: int, values: int = 4, **more: Any
) -> dict[str, Any]:
    """Few different values: each occurs many times."""
    return {"self": make.integers(0, values, *shape).to(make.dtype), "dim": dim, **more}


def _any(make: Maker, shape: tuple[int, ...], dim: int, **more: Any) -> dict[str, Any]:
    return {"self": make.normal(*shape), "dim": dim, **more}


def _special(make: Maker, shape: tuple[int, int]) -> dict[str, Any]:
    """Rows with a NaN, with NaN only, with infinities, with zeros of both signs."""
    self = make.normal(*shape)
    self[0, 2::3] = NAN
    self[1] = NAN
    self[2, ::2], self[2, 1::2] = INF, -INF
    self[3, ::2], self[3, 1::2] = -0.0, 0.0
    self[4, 1:] = -NAN
    return {"self": self, "dim": 1}


def _stored_last(call: dict[str, Any], memory_format: torch.memory_format) -> dict[str, Any]:
    return {**call, "self": call["self"].contiguous(memory_format=memory_format)}


def _sliced(make: Maker, shape: tuple[int, ...], dim: int) -> dict[str, Any]:
    """Every second element of a wider tensor, transposed."""
    wide = make.integers(0, 5, *shape[:-1], 2 * shape[-1]).to(make.dtype)
    return {"self": wide[..., ::2].transpose(0, -1), "dim": dim}


def _sample(
    op: str,
    name: str,
    make: Any,
    *covers: str,
    dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.float32, torch.int64),
    device: str = "cuda",
) -> Sample:
    return Sample(name=name, op=op, make=make, dtypes=dtypes, covers=covers, device=device)


EVERY = FLOATING + INTEGRAL
SHARED: tuple[Sample, ...] = tuple(
    sample
    for op in (MEDIAN, NANMEDIAN)
    for sample in (
        _sample(op, "ties", lambda m: _ties(m, (4, 63), -1), "collisions", dtypes=EVERY),
        _sample(op, "few", lambda m: _ties(m, (6, 9), 1, 3), "collisions", dtypes=EVERY),
        _sample(op, "all_equal", lambda m: _ties(m, (3, 300), 1, 1), "collisions"),
        _sample(op, "different", lambda m: _any(m, (5, 130), 1), dtypes=FLOATING),
        _sample(op, "even_keepdim", lambda m: _ties(m, (3, 64), 1, 9, keepdim=True)),
        _sample(op, "two", lambda m: _any(m, (5, 2), -1)),
        _sample(op, "one", lambda m: _any(m, (5, 1), -1, keepdim=True)),
        _sample(op, "scalar", lambda m: _any(m, (), -1, keepdim=True)),
        _sample(op, "first_dim", lambda m: _ties(m, (40, 3, 5), -3), "negative_dim"),
        _sample(op, "filter_3x3", lambda m: _ties(m, (2, 9, 7, 8), 2 - 4), "negative_dim"),
        _sample(op, "empty_batch", lambda m: _any(m, (0, 7), 1), "empty"),
        _sample(op, "sliced", lambda m: _sliced(m, (3, 4, 50), 0), "non_contiguous"),
        _sample(op, "sliced_few", lambda m: _sliced(m, (3, 4, 20), 0), "non_contiguous"),
        _sample(
            op,
            "last",
            lambda m: _stored_last(_ties(m, (2, 40, 3, 4), 1), torch.channels_last),
            "channels_last",
        ),
        _sample(op, "odd_1", lambda m: _ties(m, (1, 1000), 1, 99), "odd_sizes"),
        _sample(op, "odd_63", lambda m: _any(m, (63, 33), 1), "odd_sizes"),
        _sample(op, "special_few", lambda m: _special(m, (6, 9)), dtypes=FLOATING),
        _sample(op, "special", lambda m: _special(m, (6, 65)), dtypes=FLOATING),
        _sample(op, "uncached", lambda m: _ties(m, (1, 4097), 1, 50), dtypes=(torch.float64,)),
        _sample(op, "host", lambda m: _ties(m, (4, 63), -1), device="cpu"),
    )
)


def _error(
    op: str, name: str, make: Any, dtypes: tuple[torch.dtype, ...] = (torch.float32,)
) -> Sample:
    return Sample(name=f"{name}_{op.split('::')[1]}", op=op, make=make, dtypes=dtypes)


UNKNOWN = (torch.bool, torch.complex64)


SAMPLES = Samples(
    cases=(
        *SHARED,
        _sample(MEDIAN, "long", lambda m: _ties(m, (2, 2**15 + 7), 1, 200), dtypes=(torch.int16,)),
        *(
            _sample(KTH, name, lambda m: _ties(m, (4, 63), -1, k=5), "collisions", device=device)
            for name, device in (("ties", "cuda"), ("metal", "mps"), ("host", "cpu"))
        ),
        _sample(KTH, "largest", lambda m: _ties(m, (4, 9), 0, k=4, keepdim=True)),
        _sample(
            TOPK,
            "ties",
            lambda m: _ties(m, (4, 63), -1, k=5),
            "collisions",
            dtypes=(torch.bfloat16, torch.float32, torch.float64),
        ),
    ),
    errors=tuple(
        sample
        for op in (MEDIAN, NANMEDIAN)
        for sample in (
            _error(op, "size_0", lambda m: _any(m, (3, 0), 1)),
            _error(op, "empty_size_0", lambda m: _any(m, (0, 0), 1)),
            _error(op, "no_such_dim", lambda m: _any(m, (3, 4), 2)),
            _error(op, "no_such_dim_of_scalar", lambda m: _any(m, (), 1)),
            _error(op, "dtype", lambda m: _any(m, (3, 4), 1), UNKNOWN),
            _error(op, "dtype_of_scalar", lambda m: _any(m, (), 0), UNKNOWN),
        )
    ),
    bench=tuple(
        _sample(op, name, make, dtypes=(torch.float16, torch.float32))
        for op in (MEDIAN, NANMEDIAN)
        for name, make in (
            ("filter_5x5_image", lambda m: _any(m, (8, 3, 25, 512, 512), 2)),
            ("ensemble_of_10", lambda m: _any(m, (10, 256, 1000), 0)),
            ("tokens_4096", lambda m: _any(m, (8192, 4096), -1)),
            ("robust_gradient_64_clients", lambda m: _any(m, (64, 1_000_000), 0)),
            ("one_row_16m", lambda m: _any(m, (1, 1 << 24), 1)),
        )
    ),
    references={
        MEDIAN: partial(_select, torch.median),
        NANMEDIAN: partial(_select, torch.nanmedian),
        KTH: partial(_select, torch.kthvalue),
    },
)
