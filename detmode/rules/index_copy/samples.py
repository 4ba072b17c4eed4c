"""Samples of index_copy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.inputs import Assigned, back_to_front, channels_last, places
from detmode.table.inputs import indexed_rows as rows
from detmode.table.samples import Samples, sample

OP = "aten::index_copy"
EVERY = (*FLOATING, *COMPLEX, *INTEGRAL, torch.bool)
FEW = (torch.float16, torch.float32, torch.int64, torch.bool)


def _assigned(self: Any, dim: Any, index: Any, source: Any) -> Assigned:
    whole = places(self) if self.dim() else places(self).view(1)
    return self, whole.index_select(dim, index), source


_case = partial(sample, op=OP, dtypes=FEW)
_every = partial(sample, op=OP, dtypes=EVERY)
_bench = partial(sample, op=OP, dtypes=FLOATING[:3])
_plain = _case("plain", lambda m: rows(m, [4, 3], 0, 9))
_images = _case("images", lambda m: rows(m, [2, 6, 3, 5], 1, 30), "collisions")


SAMPLES = Samples(
    cases=(
        replace(
            _plain, name="duplicates", covers=("collisions",), dtypes=EVERY, variants=("cpu", "mps")
        ),
        _case("one_destination", lambda m: rows(m, [3, 2], 0, 1000, 1), "collisions"),
        _every("few_of_many", lambda m: rows(m, [900, 3], 0, 40, 6), "collisions"),
        _every("wide_rows", lambda m: rows(m, [5, 136], 0, 20), "collisions"),
        _case("one_row", lambda m: rows(m, [64, 24], 0, 1)),
        _case("odd_1", lambda m: rows(m, [1], 0, 1), "odd_sizes"),
        _case("odd_63", lambda m: rows(m, [63, 63], 0, 63, 9), "odd_sizes", "collisions"),
        _case("odd_1000", lambda m: rows(m, [7, 1000], 1, 99, 10), "odd_sizes", "collisions"),
        _case("middle_dim", lambda m: rows(m, [3, 5, 17], 1, 30), "collisions"),
        _case("middle_of_many", lambda m: rows(m, [3, 90, 6], 1, 11, 5), "collisions"),
        _case("negative_dim", lambda m: rows(m, [4, 6, 3], -2, 40), "negative_dim", "collisions"),
        _case("empty_index", lambda m: rows(m, [4, 3], 0, 0), "empty"),
        _case("empty_rows", lambda m: rows(m, [4, 0], 0, 7), "empty"),
        _case("scalar", lambda m: rows(m, [1], 0, 1, self=m.normal(), source=m.normal())),
        _case("lines", lambda m: rows(m, [5, 40], 0, 30), "collisions", variants=("shifted",)),
        _images.but("non_contiguous", "non_contiguous", "collisions", source=back_to_front),
        _images.but("channels_last", "channels_last", "collisions", source=channels_last),
        _images.but("self_non_contiguous", "collisions", self=back_to_front),
    ),
    errors=(
        _plain.but("index_too_large", index=lambda index: index + 4),
        _plain.but("index_negative", index=lambda index: ~index),
        _plain.but("index_not_long", index=Tensor.int),
        _plain.but("dim_out_of_range", dim=2),
        _plain.but("index_of_two_dims", index=lambda index: index.view(3, 3)),
        _plain.but("too_few_indices", index=lambda index: index[:5]),
        _plain.but("other_dims", source=lambda source: source[:, 0]),
        _plain.but("other_row", source=lambda source: source.repeat(1, 2)),
        _plain.but("other_dtype", source=Tensor.double, dtypes=FLOATING[:3]),
    ),
    bench=(
        _bench("cache_one_token", lambda m: rows(m, [32, 8192, 128], 1, 1)),
        _bench("cache_2k_tokens", lambda m: rows(m, [32, 8192, 128], 1, 2048)),
        _bench(
            "embedding_50k_768",
            lambda m: rows(m, [30_522, 768], 0, 50_000, index=m.zipf(50_000, 30_522)),
        ),
    ),
    assignments={OP: _assigned},
)
