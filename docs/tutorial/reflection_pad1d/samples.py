"""Samples of the backward of 1-D reflection padding."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from detmode.table.conditions import COMPLEX, FLOATING
from detmode.table.samples import Maker, Samples, sample


def _padded(make: Maker, *shape: int, padding: tuple[int, int] = (2, 1)) -> dict[str, Any]:
    return {
        "grad_output": make.normal(*shape[:-1], shape[-1] + sum(padding)),
        "self": make.normal(*shape),
        "padding": list(padding),
    }


_case = partial(sample, op="aten::reflection_pad1d_backward", dtypes=FLOATING + COMPLEX)
_bench = partial(sample, op="aten::reflection_pad1d_backward", dtypes=FLOATING[:3])
_plain = _case(
    "plain", lambda m: _padded(m, 2, 3, 5), "collisions", variants=("non_contiguous", "cpu")
)

SAMPLES = Samples(
    cases=(
        _plain,
        _case("wide", lambda m: _padded(m, 2, 3, 6, padding=(5, 5)), "collisions"),
        _case("cropped", lambda m: _padded(m, 2, 3, 7, padding=(3, -2))),
        _case("unbatched", lambda m: _padded(m, 3, 1, padding=(0, 0))),
        _case("empty", lambda m: _padded(m, 0, 3, 5), "empty"),
        _case("odd", lambda m: _padded(m, 1, 63, 1001), "odd_sizes"),
    ),
    errors=(
        _plain.but("wrong_width", dtypes=(torch.float32,), padding=[2, 2]),
        _plain.but("as_wide_as_the_input", dtypes=(torch.float32,), padding=[5, -2]),
        _plain.but("integers", dtypes=(torch.int64,)),
    ),
    bench=(
        _bench("spectrogram", lambda m: _padded(m, 16, 1, 220500, padding=(512, 512))),
        _bench("vocoder", lambda m: _padded(m, 16, 512, 8192, padding=(3, 3))),
    ),
    not_applicable={
        "channels_last": "the tensors have two or three dimensions",
        "negative_dim": "the operator takes no dimension",
    },
)
