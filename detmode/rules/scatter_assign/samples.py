"""Samples of scatter with a source tensor."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.inputs import (
    Assigned,
    back_to_front,
    channels_last,
    places,
    scattered,
    scattered_rows,
)
from detmode.table.samples import Samples, sample
from detmode.table.shared_samples import scatters, wrong_scatters

OP = "aten::scatter.src"
EVERY = (*FLOATING, *COMPLEX, *INTEGRAL, torch.bool)
FEW = (torch.float16, torch.float32, torch.int64, torch.bool)


def _assigned(self: Any, dim: Any, index: Any, src: Any) -> Assigned:
    return self, places(self).gather(dim, index.long()), src[tuple(map(slice, index.shape))]


_case = partial(sample, op=OP, dtypes=FEW)
_every = partial(sample, op=OP, dtypes=EVERY)
_bench = partial(sample, op=OP, dtypes=FLOATING[:3])
_image = _case("image", lambda m: scattered(m, [2, 5, 3, 4], 1, [2, 9, 3, 4]))
_row = _case("row", lambda m: scattered(m, [4], 0, [9]))
_back: dict[str, Any] = {"index": back_to_front, "src": back_to_front}

SAMPLES = Samples(
    cases=(
        *scatters(_case),
        _case("few_places", lambda m: scattered(m, [4, 9], 0, [30, 9], spread=2), "collisions"),
        _every("few_of_many", lambda m: scattered(m, [9, 300], 1, [9, 4], spread=3)),
        _every("many_rows", lambda m: scattered(m, [66, 5], 1, [66, 9]), "collisions"),
        _case("smaller_last", lambda m: scattered(m, [5, 6], 1, [3, 20]), "collisions"),
        _every("expanded", lambda m: scattered_rows(m, [9, 40], 0, 70), "collisions"),
        _case("expanded_few", lambda m: scattered_rows(m, [900, 5], 0, 30, 4), "collisions"),
        _row.but("int32_index", index=Tensor.int),
        _image.but("non_contiguous", "non_contiguous", **_back),
        _image.but("channels_last", "channels_last", src=channels_last),
        _image.but("self_non_contiguous", self=back_to_front, **_back),
        _every("assign", lambda m: scattered(m, [5], 0, [30]), variants=("cpu", "mps")),
    ),
    errors=wrong_scatters(_case),
    bench=(
        _bench("topk_64_of_32k", lambda m: scattered(m, [512, 32_000], 1, [512, 64])),
        _bench("sort_1k_rows_4k", lambda m: scattered(m, [1024, 4096], 1, [1024, 4096])),
        _bench("sort_1m_rows_8", lambda m: scattered(m, [1 << 20, 8], 1, [1 << 20, 8])),
        _bench("rows_100k_64", lambda m: scattered_rows(m, [50_000, 64], 0, 100_000)),
    ),
    assignments={OP: _assigned},
)
