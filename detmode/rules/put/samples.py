"""Samples of ``put``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from detmode.rules.index.arguments import Assigned, last, places, special, strided, zipf
from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.samples import Maker, Sample, Samples

SUMS = FLOATING + COMPLEX
INTEGERS = (*INTEGRAL, torch.bool)
EVERY = (*SUMS, *INTEGERS)
FEW = (torch.bfloat16, torch.float32, torch.complex128, torch.bool)


def put(
    make: Maker,
    shape: Sequence[int],
    n: Sequence[int],
    spread: tuple[int, int] | None = None,
    *,
    accumulate: bool = False,
) -> dict[str, Any]:
    """Sources of the shape ``n`` for positions in ``spread``; any position if left out."""
    self = make.normal(*shape)
    low, high = spread or (-self.numel(), self.numel())
    return {
        "self": self,
        "index": make.integers(low, high, *n),
        "source": make.normal(*n),
        "accumulate": accumulate,
    }


def put_apart(make: Maker, *n: int) -> dict[str, Any]:
    """Each index once: of strided sources ATen's CPU kernel takes the last one in memory."""
    index = make.normal(*n, dtype=torch.float64).flatten().argsort().view(n)
    return put(make, [n[0] * n[1], 2], n) | {"index": index}


def _lasts(name: str, make: Any, *covers: str, dtypes: Any = FEW, device: str = "cuda") -> Sample:
    return Sample(
        name=f"{name}_last",
        op="aten::put",
        make=make,
        covers=covers,
        dtypes=dtypes,
        device=device,
    )


def _sums(
    name: str, make: Any, *covers: str, dtypes: Any = FEW[:3], device: str = "cuda"
) -> Sample:
    return Sample(
        name=f"{name}_sum",
        op="aten::put",
        make=lambda m: make(m) | {"accumulate": True},
        covers=covers,
        dtypes=dtypes,
        device=device,
    )


def _assigned(self: Any, index: Any, source: Any, accumulate: Any) -> Assigned | None:
    return None if accumulate else (self, places(self).take(index), source)


SAMPLES = Samples(
    cases=(
        _lasts("one_destination", lambda m: put(m, [9], [700], (4, 5)), "collisions", dtypes=EVERY),
        _lasts("shared_indices", lambda m: put(m, [3, 4], [60]), "collisions"),
        _lasts("few_of_many", lambda m: put(m, [40, 100], [30], (-9, 9)), "collisions"),
        _lasts("one_of_many", lambda m: put(m, [40, 100], [1])),
        _lasts("odd_1", lambda m: put(m, [1], [1]), "odd_sizes"),
        _lasts("odd_63", lambda m: put(m, [63], [63]), "odd_sizes"),
        _lasts("odd_1000", lambda m: put(m, [1000], [1000]), "odd_sizes"),
        _lasts("scalar", lambda m: put(m, [], [])),
        _lasts("other_shape", lambda m: put(m, [5], [6, 4]) | {"source": m.normal(2, 12)}),
        _lasts("empty_index", lambda m: put(m, [3, 4], [0]), "empty"),
        _lasts("empty", lambda m: put(m, [3, 0], [0]), "empty"),
        _lasts(
            "non_contiguous",
            lambda m: strided(put_apart(m, 7, 8), "self", "index", "source"),
            "non_contiguous",
        ),
        _lasts(
            "channels_last", lambda m: last(put(m, [2, 3, 4, 5], [99]), "self"), "channels_last"
        ),
        _sums("one_destination", lambda m: put(m, [9], [700], (4, 5)), "collisions", dtypes=SUMS),
        _sums("shared_indices", lambda m: put(m, [3, 4], [60]), "collisions"),
        _sums("few_of_many", lambda m: put(m, [40, 1000], [30], (-9, 9)), "collisions"),
        _sums("odd_1", lambda m: put(m, [1], [1]), "odd_sizes"),
        _sums("empty_index", lambda m: put(m, [3, 4], [0]), "empty"),
        _sums(
            "non_contiguous",
            lambda m: strided(put(m, [6, 5], [7, 8]), "self", "index", "source"),
            "non_contiguous",
        ),
        _sums("special", lambda m: special(put(m, [9], [40]), m), dtypes=FLOATING),
        _sums("integers", lambda m: put(m, [3, 4], [200]), "collisions", dtypes=INTEGERS),
        _lasts("host", lambda m: put(m, [3, 4], [60]), dtypes=EVERY, device="cpu"),
        _sums("host", lambda m: put(m, [3, 4], [60]), device="cpu"),
        _lasts("elsewhere", lambda m: put(m, [3, 4], [60]), device="meta"),
    ),
    errors=(
        _lasts("index_too_large", lambda m: put(m, [4], [9], (4, 5)), dtypes=SUMS),
        _lasts("index_too_small", lambda m: put(m, [4], [9], (-5, -4))),
        _lasts("index_not_long", lambda m: put(m, [4], [9]) | {"index": m.integers(0, 4, 9).int()}),
        _lasts("other_number", lambda m: put(m, [4], [9]) | {"source": m.normal(8)}),
        _lasts(
            "other_dtype",
            lambda m: put(m, [4], [9]) | {"source": m.normal(9).double()},
            dtypes=SUMS[:3],
        ),
        _lasts("nowhere_to_go", lambda m: put(m, [0], [9], (0, 1))),
        _sums("index_too_large", lambda m: put(m, [4], [9], (4, 5))),
        _sums("index_too_small", lambda m: put(m, [4], [9], (-5, -4)), dtypes=INTEGERS),
        _sums("other_number", lambda m: put(m, [4], [9]) | {"source": m.normal(8)}),
    ),
    bench=(
        _lasts("pixels_1m_of_4m", lambda m: put(m, [2048, 2048], [1 << 20]), dtypes=FLOATING[:3]),
        _lasts("points_100k_of_64m", lambda m: put(m, [1 << 26], [100_000]), dtypes=FLOATING[:3]),
        _sums(
            "take_2m_of_1m",
            lambda m: put(m, [1_000_000], [1 << 21]) | {"index": zipf(m, 1 << 21, 1_000_000)},
            dtypes=FLOATING[:3],
        ),
    ),
    not_applicable={
        "negative_dim": "put takes no dimension; its negative positions are in samples"
    },
    assignments={"aten::put": _assigned},
)
