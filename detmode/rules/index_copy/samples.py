"""Samples of index_copy."""

from __future__ import annotations

from typing import Any

import torch

from detmode.rules.index.arguments import Assigned, add, last, places, shifted, strided, zipf
from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.samples import Sample, Samples

EVERY = (*FLOATING, *COMPLEX, *INTEGRAL, torch.bool)
FEW = (torch.float16, torch.float32, torch.int64, torch.bool)


def _copies(name: str, make: Any, *covers: str, dtypes: Any = FEW, device: str = "cuda") -> Sample:
    return Sample(
        name=name, op="aten::index_copy", make=make, covers=covers, dtypes=dtypes, device=device
    )


def _assigned(self: Any, dim: Any, index: Any, source: Any) -> Assigned:
    whole = places(self) if self.dim() else places(self).view(1)
    return self, whole.index_select(dim, index), source


SAMPLES = Samples(
    cases=(
        *(
            _copies(
                "duplicates", lambda m: add(m, [5, 4], 0, 20), "collisions", dtypes=EVERY, device=d
            )
            for d in ("cuda", "cpu", "mps")
        ),
        _copies("one_destination", lambda m: add(m, [3, 2], 0, 1000, 1), "collisions"),
        _copies("few_of_many", lambda m: add(m, [900, 3], 0, 40, 6), "collisions", dtypes=EVERY),
        _copies("wide_rows", lambda m: add(m, [5, 136], 0, 20), "collisions", dtypes=EVERY),
        _copies("one_row", lambda m: add(m, [64, 24], 0, 1)),
        _copies("odd_1", lambda m: add(m, [1], 0, 1), "odd_sizes"),
        _copies("odd_63", lambda m: add(m, [63, 63], 0, 63, 9), "odd_sizes", "collisions"),
        _copies("odd_1000", lambda m: add(m, [7, 1000], 1, 99, 10), "odd_sizes", "collisions"),
        _copies("middle_dim", lambda m: add(m, [3, 5, 17], 1, 30), "collisions"),
        _copies("middle_of_many", lambda m: add(m, [3, 90, 6], 1, 11, 5), "collisions"),
        _copies("negative_dim", lambda m: add(m, [4, 6, 3], -2, 40), "negative_dim", "collisions"),
        _copies("empty_index", lambda m: add(m, [4, 3], 0, 0), "empty"),
        _copies("empty_rows", lambda m: add(m, [4, 0], 0, 7), "empty"),
        _copies("scalar", lambda m: add(m, [1], 0, 1) | {"self": m.normal(), "source": m.normal()}),
        _copies("shifted", lambda m: shifted(add(m, [5, 40], 0, 30)), "collisions"),
        _copies(
            "non_contiguous",
            lambda m: strided(add(m, [6, 5, 4], 0, 30), "source"),
            "non_contiguous",
            "collisions",
        ),
        _copies(
            "channels_last", lambda m: last(add(m, [2, 6, 3, 5], 1, 9), "source"), "channels_last"
        ),
        _copies("self_non_contiguous", lambda m: strided(add(m, [6, 5], 0, 30), "self")),
    ),
    errors=(
        _copies("index_too_large", lambda m: add(m, [4, 3], 0, 9) | {"index": m.integers(4, 5, 9)}),
        _copies("index_negative", lambda m: add(m, [4, 3], 0, 9) | {"index": m.integers(-1, 0, 9)}),
        _copies(
            "index_not_long", lambda m: add(m, [4], 0, 9) | {"index": m.integers(0, 4, 9).int()}
        ),
        _copies("dim_out_of_range", lambda m: add(m, [4, 3], 0, 9) | {"dim": 2}),
        _copies(
            "index_of_two_dims", lambda m: add(m, [4], 0, 9) | {"index": m.integers(0, 4, 3, 3)}
        ),
        _copies("too_few_indices", lambda m: add(m, [4, 3], 0, 9) | {"index": m.integers(0, 4, 5)}),
        _copies("other_dims", lambda m: add(m, [4, 3], 0, 9) | {"source": m.normal(9)}),
        _copies("other_row", lambda m: add(m, [4, 3], 0, 9) | {"source": m.normal(9, 4)}),
        _copies(
            "other_dtype",
            lambda m: add(m, [4], 0, 9) | {"source": m.normal(9).double()},
            dtypes=FLOATING[:3],
        ),
    ),
    bench=(
        _copies("cache_one_token", lambda m: add(m, [32, 8192, 128], 1, 1), dtypes=FLOATING[:3]),
        _copies("cache_2k_tokens", lambda m: add(m, [32, 8192, 128], 1, 2048), dtypes=FLOATING[:3]),
        _copies(
            "embedding_50k_768",
            lambda m: {**add(m, [30_522, 768], 0, 50_000), "index": zipf(m, 50_000, 30_522)},
            dtypes=FLOATING[:3],
        ),
    ),
    assignments={"aten::index_copy": _assigned},
)
