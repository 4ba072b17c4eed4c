"""Samples of ``put``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.inputs import Arguments, Assigned, places, special, strided
from detmode.table.samples import Maker, Samples, sample

OP = "aten::put"
SUMS = FLOATING + COMPLEX
INTEGERS = (*INTEGRAL, torch.bool)
EVERY = (*SUMS, *INTEGERS)
FEW = (torch.bfloat16, torch.float32, torch.complex128, torch.bool)


def _put(
    m: Maker,
    shape: Sequence[int],
    n: Sequence[int],
    spread: tuple[int, int] | None = None,
    accumulate: bool = False,
) -> Arguments:
    """Sources of the shape ``n`` for positions in ``spread``; any position if left out."""
    self = m.normal(*shape)
    low, high = spread or (-self.numel(), self.numel())
    index = m.integers(low, high, *n)
    return {"self": self, "index": index, "source": m.normal(*n), "accumulate": accumulate}


def _put_apart(m: Maker, *n: int) -> Arguments:
    # Each index once: of strided sources ATen's CPU kernel takes the last one in memory.
    index = m.normal(*n, dtype=torch.float64).flatten().argsort().view(n)
    return _put(m, [n[0] * n[1], 2], n) | {"index": index}


def _assigned(self: Any, index: Any, source: Any, accumulate: Any) -> Assigned | None:
    return None if accumulate else (self, places(self).take(index), source)


_sum = partial(_put, accumulate=True)
_lasts = partial(sample, op=OP, dtypes=FEW)
_sums = partial(sample, op=OP, dtypes=FEW[:3])
_bench = partial(sample, op=OP, dtypes=FLOATING[:3])
_last = _lasts("last", lambda m: _put(m, [4], [9]))


SAMPLES = Samples(
    cases=(
        _lasts("one_last", lambda m: _put(m, [9], [700], (4, 5)), "collisions", dtypes=EVERY),
        _lasts(
            "shared_last",
            lambda m: _put(m, [3, 4], [60]),
            "collisions",
            dtypes=EVERY,
            variants=("cpu", "meta"),
        ),
        _lasts("few_of_many_last", lambda m: _put(m, [40, 100], [30], (-9, 9)), "collisions"),
        _lasts("one_of_many_last", lambda m: _put(m, [40, 100], [1])),
        _lasts("odd_1_last", lambda m: _put(m, [1], [1]), "odd_sizes"),
        _lasts("odd_63_last", lambda m: _put(m, [63], [63]), "odd_sizes"),
        _lasts("odd_1000_last", lambda m: _put(m, [1000], [1000]), "odd_sizes"),
        _lasts("scalar_last", lambda m: _put(m, [], [])),
        _lasts("other_shape_last", lambda m: _put(m, [5], [6, 4]) | {"source": m.normal(2, 12)}),
        _lasts("empty_index_last", lambda m: _put(m, [3, 4], [0]), "empty"),
        _lasts("empty_last", lambda m: _put(m, [3, 0], [0]), "empty"),
        _lasts("non_contiguous_last", lambda m: strided(_put_apart(m, 7, 8)), "non_contiguous"),
        _lasts("image_last", lambda m: _put(m, [2, 3, 4, 5], [99]), variants=("channels_last",)),
        _sums("one_sum", lambda m: _sum(m, [9], [700], (4, 5)), "collisions", dtypes=SUMS),
        _sums("shared_sum", lambda m: _sum(m, [3, 4], [60]), "collisions", variants=("cpu",)),
        _sums("few_of_many_sum", lambda m: _sum(m, [40, 1000], [30], (-9, 9)), "collisions"),
        _sums("odd_1_sum", lambda m: _sum(m, [1], [1]), "odd_sizes"),
        _sums("empty_index_sum", lambda m: _sum(m, [3, 4], [0]), "empty"),
        _sums("plane_sum", lambda m: _sum(m, [6, 5], [7, 8]), variants=("non_contiguous",)),
        _sums("special_sum", lambda m: special(_sum(m, [9], [40]), "source"), dtypes=FLOATING),
        _sums("integers_sum", lambda m: _sum(m, [3, 4], [200]), "collisions", dtypes=INTEGERS),
    ),
    errors=(
        _lasts("index_too_large_last", lambda m: _put(m, [4], [9], (4, 5)), dtypes=SUMS),
        _lasts("index_too_small_last", lambda m: _put(m, [4], [9], (-5, -4))),
        _last.but("index_not_long_last", index=Tensor.int),
        _last.but("other_number_last", source=lambda source: source[1:]),
        _last.but("other_dtype_last", source=Tensor.double, dtypes=SUMS[:3]),
        _last.but("nowhere_to_go_last", self=lambda self: self[:0]),
        _sums("index_too_large_sum", lambda m: _sum(m, [4], [9], (4, 5))),
        _sums("index_too_small_sum", lambda m: _sum(m, [4], [9], (-5, -4)), dtypes=INTEGERS),
        _last.but("other_number_sum", source=lambda source: source[1:], accumulate=True),
    ),
    bench=(
        _bench("pixels_1m_of_4m_last", lambda m: _put(m, [2048, 2048], [1 << 20])),
        _bench("points_100k_of_64m_last", lambda m: _put(m, [1 << 26], [100_000])),
        _bench(
            "take_2m_of_1m_sum",
            lambda m: _sum(m, [1_000_000], [1 << 21]) | {"index": m.zipf(1 << 21, 1_000_000)},
        ),
    ),
    not_applicable={
        "negative_dim": "put takes no dimension; its negative positions are in samples"
    },
    assignments={OP: _assigned},
)
