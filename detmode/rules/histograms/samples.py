"""Samples of counts."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import torch

from detmode.rules.histograms.arguments import (
    counts,
    grid,
    histc,
    special,
    special_weights,
    strided,
    wrong,
)
from detmode.rules.index.arguments import zipf
from detmode.table.conditions import INTEGRAL
from detmode.table.samples import Sample, Samples

HISTC, BINCOUNT = "aten::histc", "aten::bincount"
REAL = (torch.float32, torch.float64)


def _h(name: str, make: Any, *covers: str) -> Sample:
    return Sample(name=name, op=HISTC, make=make, dtypes=REAL, covers=covers)


def _b(name: str, make: Any, *covers: str, dtypes: tuple[torch.dtype, ...] = REAL) -> Sample:
    return Sample(name=name, op=BINCOUNT, make=make, dtypes=dtypes, covers=covers)


def _error(name: str, op: str, make: Any) -> Sample:
    return Sample(name=f"{name}_{op.removeprefix('aten::')}", op=op, make=make)


SAMPLES = Samples(
    cases=(
        _h("few_bins", lambda m: histc(m, (3000,), bins=3, min=-3, max=3), "collisions"),
        _h("one_bin", lambda m: histc(m, (300,), bins=1, min=0, max=4), "collisions"),
        _h("edges", lambda m: histc(m, (500,), bins=64, min=-4, max=4), "collisions"),
        _h("outside", lambda m: histc(m, (300,), bins=7, min=5, max=6)),
        _h("range_of_elements", lambda m: histc(m, (7, 9), bins=16)),
        _h("range_of_elements_few", lambda m: {"self": m.tensor([2.5, 2.5, 2.5]), "bins": 5}),
        _h("range_given_equal", lambda m: histc(m, (99,), bins=4, min=1.5, max=1.5)),
        _h("default_bins", lambda m: histc(m, (400,), min=-2.5, max=10)),
        _h("global_bins", lambda m: histc(m, (200,), bins=20_000, min=-4, max=4)),
        _h("special_values", special),
        _h("empty_input", lambda m: histc(m, (0, 3), bins=4, max=1), "empty"),
        _h("empty_no_range", lambda m: histc(m, (0,), bins=4), "empty"),
        _h("scalar", lambda m: histc(m, (), bins=8, min=-4, max=4)),
        _h(
            "sliced",
            lambda m: {"self": grid(m, 30, 40)[::3, 1::2].t(), "bins": 16, "min": -4, "max": 4},
            "non_contiguous",
        ),
        _h(
            "last",
            lambda m: {
                "self": grid(m, 2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
                "bins": 8,
                "min": -4,
                "max": 4,
            },
            "channels_last",
        ),
        _h("odd", lambda m: histc(m, (63, 1000), bins=63, min=-4, max=4), "odd_sizes"),
        Sample(
            name="integers",
            op=HISTC,
            make=lambda m: {"self": m.normal(300), "bins": 3},
            dtypes=(torch.int32, torch.int64),
        ),
        _b(
            "weights",
            lambda m: counts(m, 300, 5),
            "collisions",
            dtypes=(*REAL, torch.float16, torch.bfloat16, torch.int64, torch.bool),
        ),
        _b("one_bin", lambda m: counts(m, 1000, 1), "collisions", "odd_sizes"),
        _b("many_bins", lambda m: counts(m, 63, 5000), "odd_sizes"),
        _b("minlength", lambda m: counts(m, 30, 5, minlength=40)),
        _b("small_minlength", lambda m: counts(m, 30, 9, minlength=3)),
        _b("empty_input", lambda m: counts(m, 0, 5, minlength=3), "empty"),
        _b(
            "empty_input_weights", lambda m: {**counts(m, 0, 5), "weights": m.normal(2, 2)}, "empty"
        ),
        _b("strided", strided, "non_contiguous"),
        _b("special_weights", special_weights),
        *(
            _b(
                f"bins_{str(dtype).removeprefix('torch.')}",
                lambda m, dtype=dtype: counts(m, 99, 99, dtype),
                dtypes=(torch.float32,),
            )
            for dtype in INTEGRAL
        ),
        Sample(name="no_weights", op=BINCOUNT, make=lambda m: {"self": m.integers(0, 5, 300)}),
        Sample(name="host", op=BINCOUNT, make=lambda m: counts(m, 300, 5), device="cpu"),
    ),
    errors=(
        *(
            _error(name, HISTC, lambda m, more=more: histc(m, (9,), **more))
            for name, more in (
                ("no_bins", {"bins": 0}),
                ("negative_bins", {"bins": -1}),
                ("turned", {"min": 2, "max": 1}),
                ("nan", {"min": nan, "max": 1}),
                ("infinite", {"min": 0, "max": inf}),
                ("minus_infinite", {"min": -inf, "max": 1}),
                ("overflow", {"min": -1e300, "max": 1e300}),
            )
        ),
        *(
            _error(name, HISTC, lambda m, value=value: {"self": m.tensor([1.0, value, 2.0])})
            for name, value in (("nan_element", nan), ("infinite_element", inf))
        ),
        _error("two_dims", BINCOUNT, lambda m: wrong(m, self=m.integers(0, 5, 2, 3))),
        _error("no_dims", BINCOUNT, lambda m: wrong(m, self=m.integers(0, 5))),
        _error("negative", BINCOUNT, lambda m: wrong(m, self=m.integers(-5, -1, 6))),
        _error("floating", BINCOUNT, lambda m: wrong(m, self=m.normal(6))),
        _error("bool", BINCOUNT, lambda m: wrong(m, self=m.normal(6, dtype=torch.bool))),
        _error("short_weights", BINCOUNT, lambda m: wrong(m, weights=m.normal(5))),
        _error("flat_weights", BINCOUNT, lambda m: wrong(m, weights=m.normal(6, 1))),
        _error("minlength", BINCOUNT, lambda m: wrong(m, minlength=-1)),
    ),
    bench=(
        _h("calibration_2048_bins", lambda m: {"self": m.normal(8, 1024, 4096), "bins": 2048}),
        _h(
            "image_256_bins",
            lambda m: {"self": m.normal(32, 3, 512, 512).sigmoid(), "bins": 256, "max": 1},
        ),
        _h(
            "gradient_norms_64",
            lambda m: {"self": m.normal(1 << 20), "bins": 64, "min": -4, "max": 4},
        ),
        _b("expert_load_64", lambda m: counts(m, 1 << 20, 64)),
        _b(
            "word_weights_50k",
            lambda m: {"self": zipf(m, 1 << 22, 50_257), "weights": m.normal(1 << 22)},
        ),
        _b("pixels_2m_512x512", lambda m: counts(m, 1 << 21, 1 << 18)),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
)
