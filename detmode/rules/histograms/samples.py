"""Samples of counts."""

from __future__ import annotations

from functools import partial
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

from detmode.table.conditions import INTEGRAL
from detmode.table.inputs import LAYOUTS, Arguments
from detmode.table.samples import Maker, Samples, sample

REAL = (torch.float32, torch.float64)


def _histc(m: Maker, *shape: int, **more: Any) -> Arguments:
    # Eighths in [-4, 4]: their bins are the same in every dtype, on the edges too.
    return {"self": m.integers(-32, 33, *shape).to(m.dtype) / 8, **more}


def _special(m: Maker) -> Arguments:
    """Values that lie in no bin, on an edge, or in a bin by their sign."""
    call = _histc(m, 97, bins=8, min=-4, max=4)
    call["self"][:6] = m.tensor([nan, inf, -inf, -0.0, 1e-40, 4.0])
    return call


def _counts(
    m: Maker, n: int, bins: int, dtype: torch.dtype = torch.int64, **more: Any
) -> Arguments:
    return {"self": m.integers(0, bins, n, dtype=dtype), "weights": m.normal(n), **more}


def _strided(m: Maker) -> Arguments:
    call = _counts(m, 600, 9)
    return {"self": call["self"][::2], "weights": call["weights"][1::2]}


def _special_weights(m: Maker) -> Arguments:
    call = _counts(m, 300, 12)
    for bin, value in enumerate([nan, 1.0, inf, 2.0, -inf, -0.0, 1e-40, -0.0]):
        call["weights"][call["self"] == bin] = value
    call["weights"][:2], call["self"][:2] = m.tensor([inf, -inf]), 11
    return call


_h = partial(sample, op="aten::histc", dtypes=REAL)
_b = partial(sample, op="aten::bincount", dtypes=REAL)
_values = sample("values", lambda m: _histc(m, 9), op="aten::histc")
_bins = sample("bins", lambda m: _counts(m, 99, 99), op="aten::bincount")


SAMPLES = Samples(
    cases=(
        _h("few_bins", lambda m: _histc(m, 3000, bins=3, min=-3, max=3), "collisions"),
        _h("one_bin", lambda m: _histc(m, 300, bins=1, min=0, max=4), "collisions"),
        _h("edges", lambda m: _histc(m, 500, bins=64, min=-4, max=4), "collisions"),
        _h("outside", lambda m: _histc(m, 300, bins=7, min=5, max=6)),
        _h("range_of_elements", lambda m: _histc(m, 7, 9, bins=16)),
        _h("range_of_elements_few", lambda m: {"self": m.tensor([2.5, 2.5, 2.5]), "bins": 5}),
        _h("range_given_equal", lambda m: _histc(m, 99, bins=4, min=1.5, max=1.5)),
        _h("default_bins", lambda m: _histc(m, 400, min=-2.5, max=10)),
        _h("global_bins", lambda m: _histc(m, 200, bins=20_000, min=-4, max=4)),
        _h("special_values", _special),
        _h("empty_input", lambda m: _histc(m, 0, 3, bins=4, max=1), "empty"),
        _h("empty_no_range", lambda m: _histc(m, 0, bins=4), "empty"),
        _h("scalar", lambda m: _histc(m, bins=8, min=-4, max=4)),
        _h("image", lambda m: _histc(m, 2, 3, 4, 5, bins=8, min=-4, max=4), variants=LAYOUTS),
        _h("odd", lambda m: _histc(m, 63, 1000, bins=63, min=-4, max=4), "odd_sizes"),
        _h(
            "integers",
            lambda m: {"self": m.normal(300), "bins": 3},
            dtypes=(torch.int32, torch.int64),
        ),
        _b(
            "weights",
            lambda m: _counts(m, 300, 5),
            "collisions",
            dtypes=(*REAL, torch.float16, torch.bfloat16, torch.int64, torch.bool),
            variants=("cpu",),
        ),
        _b("one_bin", lambda m: _counts(m, 1000, 1), "collisions", "odd_sizes"),
        _b("many_bins", lambda m: _counts(m, 63, 5000), "odd_sizes"),
        _b("minlength", lambda m: _counts(m, 30, 5, minlength=40)),
        _b("small_minlength", lambda m: _counts(m, 30, 9, minlength=3)),
        _b("empty_input", lambda m: _counts(m, 0, 5, minlength=3), "empty"),
        _b("empty_weights", lambda m: _counts(m, 0, 5) | {"weights": m.normal(2, 2)}, "empty"),
        _b("strided", _strided, "non_contiguous"),
        _b("special_weights", _special_weights),
        *(
            _bins.but(f"bins_{number}", self=partial(Tensor.to, dtype=dtype))
            for number, dtype in enumerate(INTEGRAL)
        ),
        sample("no_weights", lambda m: {"self": m.integers(0, 5, 300)}, op="aten::bincount"),
    ),
    errors=(
        _values.but("no_bins", bins=0),
        _values.but("negative_bins", bins=-1),
        _values.but("turned", min=2, max=1),
        _values.but("nan", min=nan, max=1),
        _values.but("infinite", min=0, max=inf),
        _values.but("minus_infinite", min=-inf, max=1),
        _values.but("overflow", min=-1e300, max=1e300),
        _values.but("nan_element", self=torch.tensor([1.0, nan, 2.0], device="cpu")),
        _values.but("infinite_element", self=torch.tensor([1.0, inf, 2.0], device="cpu")),
        _bins.but("two_dims", self=lambda self: self.view(9, 11)),
        _bins.but("no_dims", self=lambda self: self[0]),
        _bins.but("negative", self=lambda self: ~self),
        _bins.but("floating", self=Tensor.float),
        _bins.but("bool", self=Tensor.bool),
        _bins.but("short_weights", weights=lambda weights: weights[1:]),
        _bins.but("flat_weights", weights=lambda weights: weights[:, None]),
        _bins.but("minlength", minlength=-1),
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
        _b("expert_load_64", lambda m: _counts(m, 1 << 20, 64)),
        _b(
            "word_weights_50k",
            lambda m: {"self": m.zipf(1 << 22, 50_257), "weights": m.normal(1 << 22)},
        ),
        _b("pixels_2m_512x512", lambda m: _counts(m, 1 << 21, 1 << 18)),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
)
