"""Samples of addition and assignment by index."""

from __future__ import annotations

from typing import Any

import torch

from detmode.rules.index.arguments import (
    add,
    assign,
    assigned,
    last,
    mask,
    masked,
    narrow,
    one_masked,
    put,
    shifted,
    special,
    strided,
    zipf,
)
from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.samples import Sample

PUTS = ("aten::index_put", "aten::_index_put_impl", "aten::_unsafe_index_put")
SUMS = FLOATING + COMPLEX
EVERY = (torch.float16, torch.float32, torch.complex128, torch.int64, torch.bool)


def _adds(name: str, make: Any, *covers: str, dtypes: Any = SUMS) -> Sample:
    return Sample(name=name, op="aten::index_add", make=make, covers=covers, dtypes=dtypes)


def _puts(name: str, make: Any, *covers: str, dtypes: Any = SUMS, **more: Any) -> Sample:
    return Sample(name=name, op="aten::index_put", make=make, covers=covers, dtypes=dtypes, **more)


SAMPLES: tuple[Sample, ...] = (
    _adds("one_destination_narrow", lambda m: add(m, [3, 2], 0, 1000, 1), "collisions"),
    _adds("one_destination_wide", lambda m: add(m, [3, 40], 0, 1000, 1), "collisions"),
    _adds("long_runs", lambda m: add(m, [3, 16], 0, 5000, 2), "collisions", dtypes=SUMS[2:4]),
    _adds(
        "zipf", lambda m: add(m, [500, 33], 0, 2000) | {"index": zipf(m, 2000, 500)}, "collisions"
    ),
    _adds("odd_1", lambda m: add(m, [1], 0, 1), "odd_sizes"),
    _adds("odd_63", lambda m: add(m, [63, 63], 0, 63, 9), "odd_sizes", "collisions"),
    _adds("odd_1000", lambda m: add(m, [7, 1000], 1, 1000, 10), "odd_sizes", "collisions"),
    _adds("middle_dim", lambda m: add(m, [3, 5, 17], 1, 130), "collisions"),
    _adds("negative_dim", lambda m: add(m, [4, 6, 3], -2, 40), "negative_dim", "collisions"),
    _adds("empty_index", lambda m: add(m, [4, 3], 0, 0), "empty"),
    _adds("empty_rows", lambda m: add(m, [4, 0], 0, 7), "empty"),
    _adds("scalar", lambda m: add(m, [1], 0, 1) | {"self": m.normal(), "source": m.normal()}),
    _adds("int32_index", lambda m: narrow(add(m, [9, 2], 0, 50))),
    _adds("alpha", lambda m: add(m, [5, 4], 0, 100, alpha=-0.3), dtypes=FLOATING),
    _adds("alpha_wide", lambda m: add(m, [5, 70], 0, 100, alpha=3), "collisions"),
    _adds("alpha_complex", lambda m: add(m, [5, 40], 0, 100, alpha=0.5 - 2j), dtypes=COMPLEX),
    _adds(
        "non_contiguous",
        lambda m: strided(add(m, [6, 5, 4], 0, 90), "self", "source"),
        "non_contiguous",
        "collisions",
    ),
    _adds(
        "channels_last",
        lambda m: last(add(m, [2, 6, 3, 5], 1, 50), "self", "source"),
        "channels_last",
    ),
    _adds("shifted", lambda m: shifted(add(m, [5, 40], 0, 90)), "collisions"),
    _adds("special_narrow", lambda m: special(add(m, [3, 2], 0, 30), m), dtypes=FLOATING),
    _adds("special_wide", lambda m: special(add(m, [3, 40], 0, 30), m), dtypes=FLOATING),
    _adds("integers", lambda m: add(m, [4, 3], 0, 50), dtypes=INTEGRAL),
    _puts("one_destination", lambda m: put(m, [9], [m.integers(4, 5, 700)], 700), "collisions"),
    _puts("rows", lambda m: put(m, [50, 65], [m.integers(-50, 50, 400)], 400, 65), "collisions"),
    _puts("pairs", lambda m: put(m, [4, 5], [m.integers(0, 4, 99), m.integers(-5, 5, 99)], 99)),
    _puts("broadcast", lambda m: put(m, [4, 5], [m.integers(0, 4, 9, 1), m.integers(0, 5, 7)], 7)),
    _puts("apart", lambda m: put(m, [4, 5, 6], [m.integers(0, 4, 9), None, m.integers(0, 6, 9)])),
    _puts("behind", lambda m: put(m, [4, 5, 6], [None, m.integers(0, 5, 3, 4)], 4, 3, 4, 6)),
    _puts("mask", lambda m: put(m, [6, 7, 3], [mask(m, 6, 7)], 3)),
    _puts("mask_and_index", lambda m: put(m, [6, 7], [torch.arange(6) > 3, m.integers(0, 7, 2)])),
    _puts("scalar_index", lambda m: put(m, [6], [m.integers(0, 6)])),
    _puts("empty", lambda m: put(m, [6, 7], [m.integers(0, 6, 0)], 0, 7), "empty"),
    _puts(
        "channels_last",
        lambda m: last(put(m, [2, 6, 3, 5], [None, m.integers(0, 6, 9)], 2, 9, 3, 5), "self"),
        "channels_last",
    ),
    _puts(
        "special",
        lambda m: special(put(m, [9], [m.integers(0, 9, 40)], 40), m, "values"),
        dtypes=FLOATING,
    ),
    *(
        _puts(
            f"last_{name}",
            lambda m, a=a: put(m, *a(m), accumulate=False),
            "collisions",
            dtypes=EVERY,
        )
        for name, a in (
            ("rows", lambda m: ([5, 65], [m.integers(-5, 5, 40)], 40, 65)),
            ("few_rows", lambda m: ([500, 3], [m.integers(0, 9, 40)], 40, 3)),
            ("pairs", lambda m: ([4, 5], [m.integers(0, 4, 99), m.integers(-5, 5, 99)], 99)),
            ("apart", lambda m: ([4, 5, 6], [m.integers(0, 4, 9), None, m.integers(0, 6, 9)])),
            ("mask", lambda m: ([6, 7, 3], [mask(m, 6, 7)], 3)),
            ("empty", lambda m: ([6, 7], [m.integers(0, 6, 0)], 0, 7)),
        )
    ),
    *(
        Sample(name=f"{name}_{number}", op=op, make=make, dtypes=dtypes, device=device)
        for op in PUTS
        for number, (name, make, dtypes, device) in enumerate(
            (
                ("add", lambda m: put(m, [6, 40], [m.integers(0, 6, 90)], 90, 40), SUMS, "cuda"),
                ("add", lambda m: put(m, [6], [m.integers(0, 6, 9)], 9), SUMS, "cpu"),
                ("add", lambda m: put(m, [6], [m.integers(0, 6, 9)], 9), SUMS, "mps"),
                ("add", lambda m: put(m, [6], [m.integers(0, 6, 9)], 9), INTEGRAL, "cuda"),
                ("one_value", lambda m: assign(m, 1), SUMS, "cuda"),
                ("assign", lambda m: assign(m, 9), SUMS, "cuda"),
            )
        )
    ),
    *(
        Sample(
            name=f"{rows}_rows_{dtypes[0].itemsize}",
            op="aten::_unsafe_masked_index_put_accumulate",
            make=make,
            dtypes=dtypes,
            device=device,
        )
        for rows, make in ((80, masked), (1, one_masked))
        for dtypes, device in ((SUMS, "cuda"), (SUMS, "cpu"), (SUMS, "mps"), (INTEGRAL, "cuda"))
    ),
)
ASSIGNMENTS = dict.fromkeys(PUTS, assigned)

ERRORS: tuple[Sample, ...] = (
    _adds("index_too_large", lambda m: add(m, [4, 3], 0, 9) | {"index": m.integers(4, 5, 9)}),
    _adds("index_negative", lambda m: add(m, [4], 0, 9) | {"index": m.integers(-1, 0, 9)}),
    _adds("index_not_integer", lambda m: add(m, [4], 0, 9) | {"index": m.normal(9)}),
    _adds("index_too_short", lambda m: add(m, [4, 3], 0, 9) | {"index": m.integers(0, 4, 8)}),
    _adds("dim_out_of_range", lambda m: add(m, [4, 3], 0, 9) | {"dim": 2}),
    _adds("other_row", lambda m: add(m, [4, 3], 0, 9) | {"source": m.normal(9, 4)}),
    _adds(
        "other_dtype",
        lambda m: add(m, [4], 0, 9) | {"source": m.normal(9).double()},
        dtypes=SUMS[:3],
    ),
    _adds("alpha_too_large", lambda m: add(m, [4], 0, 9, alpha=1e39), dtypes=SUMS[:3]),
    _adds("alpha_complex", lambda m: add(m, [4], 0, 9, alpha=1j), dtypes=FLOATING),
    _puts("index_too_large", lambda m: put(m, [4, 3], [m.integers(4, 5, 9)], 9, 3)),
    _puts("index_too_small", lambda m: put(m, [4], [m.integers(-5, -4, 9)], 9)),
    _puts("index_not_integer", lambda m: put(m, [4], [m.normal(9)], 9)),
    _puts("no_common_shape", lambda m: put(m, [4, 3], [m.integers(0, 4, 9), m.integers(0, 3, 8)])),
    _puts("too_many", lambda m: put(m, [4], [m.integers(0, 4, 9), m.integers(0, 4, 9)], 9)),
    _puts("other_mask", lambda m: put(m, [4, 3], [mask(m, 4, 4)])),
    _puts("mask_of_more_dims", lambda m: put(m, [4], [mask(m, 4, 4)])),
    _puts("values_too_long", lambda m: put(m, [4], [m.integers(0, 4, 9)], 8)),
    _puts(
        "other_dtype",
        lambda m: put(m, [4], [m.integers(0, 4, 9)]) | {"values": m.normal(9).double()},
        dtypes=SUMS[:3],
    ),
    _puts("last_too_large", lambda m: put(m, [4], [m.integers(4, 5, 9)], 9, accumulate=False)),
    _puts("nothing_to_index", lambda m: put(m, [0, 3], [m.integers(0, 1, 9)], 9, 3)),
)

BENCH: tuple[Sample, ...] = (
    _adds("graph_1m_edges_64", lambda m: add(m, [100_000, 64], 0, 1_000_000), dtypes=FLOATING[:3]),
    _adds(
        "embedding_50k_768",
        lambda m: {**add(m, [30_522, 768], 0, 50_000), "index": zipf(m, 50_000, 30_522)},
        dtypes=FLOATING[:3],
    ),
    _adds(
        "recommender_2m_16",
        lambda m: {**add(m, [1_000_000, 16], 0, 2_000_000), "index": zipf(m, 2_000_000, 1_000_000)},
    ),
    _adds("one_destination_1m_64", lambda m: add(m, [10, 64], 0, 1_000_000, 1)),
    _puts("pixels_2m", lambda m: put(m, [512, 512], [m.integers(0, 512, 1 << 21)] * 2, 1 << 21)),
    _puts(
        "tokens_50k_768", lambda m: put(m, [30_522, 768], [zipf(m, 50_000, 30_522)], 50_000, 768)
    ),
)
