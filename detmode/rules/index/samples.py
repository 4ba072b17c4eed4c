"""Samples of addition and assignment by index."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.inputs import LAYOUTS, Arguments, Assigned, combined, places, routed, special
from detmode.table.inputs import indexed_rows as add
from detmode.table.samples import Maker, Samples, sample

PUTS = ("aten::index_put", "aten::_index_put_impl", "aten::_unsafe_index_put")
MASKED = "aten::_unsafe_masked_index_put_accumulate"
SUMS = FLOATING + COMPLEX
EVERY = (torch.float16, torch.float32, torch.complex128, torch.int64, torch.bool)


def put(
    m: Maker, shape: Sequence[int], indices: Sequence[Any], *values: int, accumulate: bool = True
) -> Arguments:
    """index_put of values of the shape ``values``."""
    arguments = {"self": m.normal(*shape), "indices": list(indices)}
    return {**arguments, "values": m.normal(*values), "accumulate": accumulate}


def pairs(m: Maker) -> list[Any]:
    """Two indices, the second one with negative positions."""
    return [m.integers(0, 4, 99), m.integers(-5, 5, 99)]


def apart(m: Maker) -> list[Any]:
    """Two indices with a whole dimension between them."""
    return [m.integers(0, 4, 9), None, m.integers(0, 6, 9)]


def masked(m: Maker, rows: int, columns: int) -> Arguments:
    """_unsafe_masked_index_put_accumulate, with indices out of range where the mask is False."""
    self, mask = m.normal(6, 5), m.mask(rows, 1)
    indices = [m.integers(-9, 9, rows, 1), m.integers(0, 5, columns)]
    return {"self": self, "mask": mask, "indices": indices, "values": m.normal(rows, columns)}


def _assigned(
    self: Tensor, indices: Any, values: Tensor, accumulate: bool, **unread: Any
) -> Assigned | None:
    to = torch.ops.aten.index(places(self), indices)
    return None if accumulate else (self, to, values.expand(to.shape))


_last = partial(put, accumulate=False)
_adds = partial(sample, op="aten::index_add", dtypes=SUMS)
_reals = partial(_adds, dtypes=FLOATING)
_bench = partial(_adds, dtypes=FLOATING[:3])
_puts = partial(sample, op="aten::index_put", dtypes=SUMS)
_real_put = partial(_puts, dtypes=FLOATING)
_lasts = partial(sample, op="aten::index_put", dtypes=EVERY)
_every = partial(sample, dtypes=SUMS + INTEGRAL, variants=("cpu", "mps"))
_rows = _adds("rows", lambda m: add(m, [4, 3], 0, 9))
_put = _puts("elements", lambda m: put(m, [4, 3], [m.integers(0, 4, 9), m.integers(0, 3, 9)], 9))
_true = partial(torch.ones, dtype=torch.bool, device="cpu")
_LAST_TWO = torch.arange(6, device="cpu") > 3

SAMPLES = Samples(
    cases=(
        _adds("one_destination_narrow", lambda m: add(m, [3, 2], 0, 1000, 1), "collisions"),
        _adds("one_destination_wide", lambda m: add(m, [3, 40], 0, 1000, 1), "collisions"),
        _adds("long_runs", lambda m: add(m, [3, 16], 0, 5000, 2), "collisions", dtypes=SUMS[2:4]),
        _adds("zipf", lambda m: add(m, [500, 33], 0, 2000, index=m.zipf(2000, 500)), "collisions"),
        _adds("odd_1", lambda m: add(m, [1], 0, 1), "odd_sizes"),
        _adds("odd_63", lambda m: add(m, [63, 63], 0, 63, 9), "odd_sizes", "collisions"),
        _adds("odd_1000", lambda m: add(m, [7, 1000], 1, 1000, 10), "odd_sizes", "collisions"),
        _adds("middle_dim", lambda m: add(m, [3, 5, 17], 1, 130), "collisions"),
        _adds("negative_dim", lambda m: add(m, [4, 6, 3], -2, 40), "negative_dim", "collisions"),
        _adds("empty_index", lambda m: add(m, [4, 3], 0, 0), "empty"),
        _adds("empty_rows", lambda m: add(m, [4, 0], 0, 7), "empty"),
        _adds("scalar", lambda m: add(m, [1], 0, 1, self=m.normal(), source=m.normal())),
        _adds("alpha", lambda m: add(m, [5, 4], 0, 100, alpha=-0.3), dtypes=FLOATING),
        _adds("alpha_wide", lambda m: add(m, [5, 70], 0, 100, alpha=3), "collisions"),
        _adds("alpha_complex", lambda m: add(m, [5, 40], 0, 100, alpha=0.5 - 2j), dtypes=COMPLEX),
        _adds("images", lambda m: add(m, [2, 6, 3, 5], 1, 50), "collisions", variants=LAYOUTS),
        _adds(
            "lines", lambda m: add(m, [5, 40], 0, 90), "collisions", variants=("shifted", "int32")
        ),
        _reals("special_narrow", lambda m: special(add(m, [3, 2], 0, 30), "source")),
        _reals("special_wide", lambda m: special(add(m, [3, 40], 0, 30), "source")),
        _adds("integers", lambda m: add(m, [4, 3], 0, 50), dtypes=INTEGRAL),
        _puts("one_place", lambda m: put(m, [9], [m.integers(4, 5, 700)], 700), "collisions"),
        _puts("rows", lambda m: put(m, [9, 65], [m.integers(-9, 9, 400)], 400, 65), "collisions"),
        _puts("pairs", lambda m: put(m, [4, 5], pairs(m), 99)),
        _puts("broadcast", lambda m: put(m, [4, 5], [m.integers(0, 4, 9, 1), m.zipf(7, 5)], 7)),
        _puts("apart", lambda m: put(m, [4, 5, 6], apart(m))),
        _puts("behind", lambda m: put(m, [4, 5, 6], [None, m.integers(0, 5, 3, 4)], 4, 3, 4, 6)),
        _puts("mask", lambda m: put(m, [6, 7, 3], [m.mask(6, 7)], 3)),
        _puts("mask_and_index", lambda m: put(m, [6, 7], [_LAST_TWO, m.zipf(2, 7)])),
        _puts("scalar_index", lambda m: put(m, [6], [m.integers(0, 6)])),
        _puts("empty", lambda m: put(m, [6, 7], [m.integers(0, 6, 0)], 0, 7), "empty"),
        _puts("images", lambda m: put(m, [2, 6, 3, 5], [None, m.zipf(9, 6)]), variants=LAYOUTS),
        _real_put("special", lambda m: special(put(m, [9], [m.zipf(40, 9)], 40), "values")),
        _lasts("last_rows", lambda m: _last(m, [5, 65], [m.zipf(40, 5) - 5], 40, 65), "collisions"),
        _lasts("last_few", lambda m: _last(m, [500, 3], [m.zipf(40, 9)], 40, 3), "collisions"),
        _lasts("last_pairs", lambda m: _last(m, [4, 5], pairs(m), 99), "collisions"),
        _lasts("last_apart", lambda m: _last(m, [4, 5, 6], apart(m)), "collisions"),
        _lasts("last_mask", lambda m: _last(m, [6, 7, 3], [m.mask(6, 7)], 3), "collisions"),
        _lasts("last_empty", lambda m: _last(m, [6, 7], [m.integers(0, 6, 0)], 0, 7), "empty"),
        *(
            case
            for op in PUTS
            for case in (
                _puts("add_rows", lambda m: put(m, [6, 40], [m.zipf(90, 6)], 90, 40), op=op),
                _every("add", lambda m: put(m, [6], [m.zipf(9, 6)], 9), op=op),
                _puts("assign_one_value", lambda m: _last(m, [6], [m.zipf(9, 6)], 1), op=op),
                _puts("assign", lambda m: _last(m, [6], [m.zipf(9, 6)], 9), op=op),
            )
        ),
        _every("rows", lambda m: masked(m, 80, 4), op=MASKED),
        _every("one_value", lambda m: masked(m, 1, 1), op=MASKED),
    ),
    errors=(
        _rows.but("index_too_large", index=lambda index: index + 4),
        _rows.but("index_negative", index=lambda index: ~index),
        _rows.but("index_not_integer", index=Tensor.double),
        _rows.but("index_too_short", index=lambda index: index[1:]),
        _rows.but("dim_out_of_range", dim=2),
        _rows.but("other_row", source=lambda source: source.repeat(1, 2)),
        _rows.but("other_dtype", source=Tensor.double, dtypes=SUMS[:3]),
        _rows.but("alpha_too_large", alpha=1e39, dtypes=SUMS[:3]),
        _rows.but("alpha_complex", alpha=1j, dtypes=FLOATING),
        _put.but("index_too_large", indices=lambda indices: [indices[0] + 4, indices[1]]),
        _put.but("index_too_small", indices=lambda indices: [indices[0] - 9, indices[1]]),
        _put.but("index_not_integer", indices=lambda indices: [indices[0].double()]),
        _put.but("no_common_shape", indices=lambda indices: [indices[0], indices[1][1:]]),
        _put.but("too_many", indices=lambda indices: [*indices, *indices]),
        _put.but("other_mask", indices=[_true(4, 4)]),
        _put.but("mask_of_more_dims", indices=[_true(4, 3, 2)]),
        _put.but("values_too_long", values=lambda values: values[1:]),
        _put.but("other_dtype", values=Tensor.double, dtypes=SUMS[:3]),
        _put.but("nothing_to_index", self=lambda self: self[:0]),
        _puts("last_too_large", lambda m: _last(m, [4], [m.integers(4, 5, 9)], 9)),
    ),
    bench=(
        _bench("graph_1m_edges_64", lambda m: add(m, [100_000, 64], 0, 1_000_000)),
        _bench(
            "embedding_50k_768",
            lambda m: add(m, [30522, 768], 0, 50000, index=m.zipf(50000, 30522)),
        ),
        _adds(
            "recommender_2m_16",
            lambda m: add(m, [1_000_000, 16], 0, 2_000_000, index=m.zipf(2_000_000, 1_000_000)),
        ),
        _bench("hash_grid_32m_2", lambda m: add(m, [1 << 19, 2], 0, 1 << 25)),
        _bench("clusters_1m_128_to_1k", lambda m: add(m, [1000, 128], 0, 1_000_000)),
        _adds("one_destination_1m_64", lambda m: add(m, [10, 64], 0, 1_000_000, 1)),
        _bench("experts_2k_top8_7168", lambda m: combined(m, 2048, 8, 7168)),
        _bench("experts_8k_top2_8192", lambda m: combined(m, 8192, 2, 8192)),
        _bench("experts_16k_top1_1024", lambda m: combined(m, 16_384, 1, 1024)),
        _puts(
            "experts_8k_top2_4096",
            lambda m: put(m, [8192, 4096], [routed(m, 8192, 2)], 16_384, 4096),
        ),
        _puts(
            "pixels_2m", lambda m: put(m, [512, 512], [m.integers(0, 512, 1 << 21)] * 2, 1 << 21)
        ),
        _puts(
            "tokens_50k_768", lambda m: put(m, [30_522, 768], [m.zipf(50_000, 30_522)], 50_000, 768)
        ),
    ),
    assignments=dict.fromkeys(PUTS, _assigned),
)
