"""Samples of scatter with a source tensor."""

from __future__ import annotations

from typing import Any

import torch

from detmode.rules.index.arguments import Assigned, places
from detmode.rules.scatter.arguments import batched, expanded, last, narrow, onto, strided
from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.samples import Sample, Samples

SUMS = FLOATING + COMPLEX
EVERY = (*SUMS, *INTEGRAL, torch.bool)
FEW = (torch.float16, torch.float32, torch.int64, torch.bool)


def _assigns(name: str, make: Any, *covers: str, dtypes: Any = FEW) -> Sample:
    return Sample(name=name, op="aten::scatter.src", make=make, covers=covers, dtypes=dtypes)


def _contiguous(arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, "self": arguments["self"].contiguous()}


def _assigned(self: Any, dim: Any, index: Any, src: Any) -> Assigned:
    return self, places(self).gather(dim, index.long()), src[tuple(map(slice, index.shape))]


SAMPLES = Samples(
    cases=(
        _assigns("one_destination", lambda m: onto(m, [4], 0, [1000], spread=1), "collisions"),
        _assigns("few_destinations", lambda m: onto(m, [4, 9], 0, [30, 9], spread=2), "collisions"),
        _assigns("few_of_many", lambda m: onto(m, [9, 300], 1, [9, 4], spread=3), dtypes=EVERY),
        _assigns("odd_1", lambda m: onto(m, [1], 0, [1]), "odd_sizes"),
        _assigns("odd_63", lambda m: onto(m, [63, 5], 0, [63, 5]), "odd_sizes"),
        _assigns("odd_1000", lambda m: onto(m, [3, 99], 1, [3, 1000]), "odd_sizes", "collisions"),
        _assigns(
            "smaller_index", lambda m: onto(m, [5, 6, 7], 1, [3, 20, 4], [5, 21, 6]), "collisions"
        ),
        _assigns("smaller_last", lambda m: onto(m, [5, 6], 1, [3, 20]), "collisions"),
        _assigns("negative_dim", lambda m: onto(m, [4, 5, 6], -2, [4, 9, 6]), "negative_dim"),
        _assigns("expanded", lambda m: expanded(m, [9, 40], 0, 70), "collisions", dtypes=EVERY),
        _assigns("expanded_few", lambda m: expanded(m, [900, 5], 0, 30, 4), "collisions"),
        _assigns("expanded_batches", batched, "collisions"),
        _assigns("empty_index", lambda m: onto(m, [4, 5], 0, [0, 5]), "empty"),
        _assigns("empty_rows", lambda m: onto(m, [4, 0], 0, [3, 0]), "empty"),
        _assigns("scalar", lambda m: onto(m, [], 0, [])),
        _assigns("int32_index", lambda m: narrow(onto(m, [4], 0, [9]))),
        _assigns(
            "non_contiguous",
            lambda m: _contiguous(strided(onto(m, [4, 5, 6], 0, [9, 5, 6]))),
            "non_contiguous",
        ),
        _assigns(
            "channels_last",
            lambda m: _contiguous(last(onto(m, [2, 5, 3, 4], 1, [2, 9, 3, 4]))),
            "channels_last",
        ),
        _assigns("self_non_contiguous", lambda m: strided(onto(m, [4, 5, 6], 0, [9, 5, 6]))),
        *(
            Sample(
                name="assign",
                op="aten::scatter.src",
                make=lambda m: onto(m, [5], 0, [30]),
                dtypes=SUMS + INTEGRAL,
                device=device,
            )
            for device in ("cuda", "cpu", "mps")
        ),
    ),
    errors=(
        _assigns(
            "index_too_large", lambda m: onto(m, [4], 0, [9]) | {"index": m.integers(4, 5, 9)}
        ),
        _assigns(
            "index_negative", lambda m: onto(m, [4], 0, [9]) | {"index": m.integers(-1, 0, 9)}
        ),
        _assigns("index_not_integer", lambda m: onto(m, [4], 0, [9]) | {"index": m.normal(9)}),
        _assigns(
            "index_of_two_dims", lambda m: onto(m, [4], 0, [9]) | {"index": m.integers(0, 4, 9, 1)}
        ),
        _assigns("index_beyond_src", lambda m: onto(m, [4], 0, [9], [8])),
        _assigns("index_beyond_self", lambda m: onto(m, [4, 3], 0, [9, 4])),
        _assigns("dim_out_of_range", lambda m: onto(m, [4], 0, [9]) | {"dim": 1}),
        _assigns("nowhere_to_go", lambda m: onto(m, [0], 0, [9])),
        _assigns(
            "other_dtype",
            lambda m: onto(m, [4], 0, [9]) | {"src": m.normal(9).double()},
            dtypes=SUMS[:3],
        ),
    ),
    bench=(
        _assigns("topk_64_of_32k", lambda m: onto(m, [512, 32_000], 1, [512, 64]), dtypes=SUMS[:3]),
        _assigns(
            "sort_1k_rows_4k", lambda m: onto(m, [1024, 4096], 1, [1024, 4096]), dtypes=SUMS[:3]
        ),
        _assigns("rows_100k_64", lambda m: expanded(m, [50_000, 64], 0, 100_000), dtypes=SUMS[:3]),
    ),
    assignments={"aten::scatter.src": _assigned},
)
