"""Samples of scans."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from detmode.rules.scan import reference
from detmode.table.conditions import COMPLEX, FLOATING
from detmode.table.inputs import Arguments
from detmode.table.samples import Maker, Sample, Samples, sample

_OPS = ("aten::cumsum", "aten::cumprod", "aten::logcumsumexp")
_ALL = FLOATING + COMPLEX
_last = partial(Tensor.to, memory_format=torch.channels_last)
_SOME = (torch.float16, torch.float32, torch.complex64)


def _values(m: Maker, op: str, *shape: int) -> Tensor:
    if op == "aten::cumsum":
        return m.normal(*shape)
    wide = torch.complex128 if m.dtype.is_complex else torch.float64
    values = m.normal(*shape, dtype=wide)
    if op == "aten::cumprod":
        # Close to 1: the products of long rows stay in the range of float16.
        return (1 + values / 256).to(m.dtype)
    # Imaginary parts below 1: which multiple of 2 pi the sum's has depends on the order.
    return (torch.complex(values.real, values.imag / 64) if wide.is_complex else values).to(m.dtype)


def _row(
    name: str,
    shape: tuple[int, ...],
    dim: int,
    *covers: str,
    change: Callable[[Tensor], Tensor] | None = None,
    ops: tuple[str, ...] = _OPS,
    dtypes: tuple[torch.dtype, ...] = _ALL,
) -> tuple[Sample, ...]:
    def make(m: Maker, op: str) -> Arguments:
        self = _values(m, op, *shape)
        return {"self": self if change is None else change(self), "dim": dim}

    return tuple(sample(name, partial(make, op=op), *covers, op=op, dtypes=dtypes) for op in ops)


def _special(tensor: Tensor) -> Tensor:
    tensor[0], tensor[40], tensor[90], tensor[190] = -inf, -0.0, inf, -inf
    tensor[250] = float("nan")
    return tensor


def _few(name: str, *, op: str, **more: Any) -> Sample:
    return sample(name, lambda m: {"self": m.normal(9), "dim": 0}, op=op, **more)


def _converted(m: Maker) -> Arguments:
    return {"self": m.integers(1, 3, 40, dtype=torch.int32), "dim": 0, "dtype": m.dtype}


def _into_floats(m: Maker) -> Arguments:
    return {"self": m.normal(9, dtype=torch.int64), "dim": 0, "out": m.tensor([0.0] * 9)}


def _bench(name: str, op: str, n: int, *dtypes: torch.dtype) -> Sample:
    def make(m: Maker) -> Arguments:
        return {"self": m.integers(0, 2, n, dtype=m.dtype), "dim": 0}

    return sample(name, make, op=op, dtypes=dtypes or (torch.float32,))


SAMPLES = Samples(
    cases=(
        *_row("row", (1, 1000, 1), -2, "negative_dim", "odd_sizes"),
        *_row("short", (63,), 0, "odd_sizes"),
        *_row("pair", (2,), -1, dtypes=_SOME),
        *_row("last", (1, 129, 1, 1), 1, "channels_last", change=_last, dtypes=_SOME),
        *_row("strided", (201, 3), 0, "non_contiguous", change=lambda x: x[:, 1]),
        *_row("expanded", (1,), 0, "non_contiguous", change=lambda x: x.expand(150), dtypes=_SOME),
        *_row("unaligned", (1030,), 0, change=lambda x: x[3:], dtypes=_SOME),
        *_row("special", (300,), 0, change=_special, dtypes=FLOATING),
        # Two tiles or more; in complex128, whose tiles have the fewest elements, more than 32.
        *_row("tiles", (4500,), 0),
        *_row("many_tiles", (33 * 1024 + 5,), 0, ops=_OPS[:1], dtypes=(torch.complex128,)),
        *(sample("converted", _converted, op=op, dtypes=_ALL) for op in _OPS[:2]),
        *(sample("rows", lambda m: {"self": m.normal(7, 63), "dim": 1}, op=op) for op in _OPS),
        *(_few("few", op=op, dtypes=_ALL, device="mps") for op in _OPS),
        *(_few("integers", op=op, dtypes=(torch.int64,)) for op in _OPS[:2]),
    ),
    errors=(
        *(_few("few", op=op).but("no_such_dim", dim=1) for op in _OPS),
        *(_few("few", op=op).but("complex32", dtype=torch.complex32) for op in _OPS[:2]),
        _few("integers", op=_OPS[2], dtypes=(torch.int64, torch.bool)),
        sample("integers_into_floats", _into_floats, op="aten::logcumsumexp.out"),
    ),
    bench=(
        *(_bench("row_256m", op, 1 << 28) for op in _OPS),
        *(_bench("row_16m", op, 1 << 24, *FLOATING, torch.complex64) for op in _OPS),
        # Probabilities of one vocabulary, sorted: top-p sampling.
        _bench("vocabulary_128k", "aten::cumsum", 128_256, torch.float32, torch.bfloat16),
        # The noise schedule of a diffusion model.
        _bench("steps_1000", "aten::cumprod", 1000),
    ),
    not_applicable={
        "collisions": "each element of the result has one place, and one thread that writes it",
        "empty": "an empty tensor has no row: ATen's result is empty, and cannot vary",
    },
    references={
        "aten::cumsum": reference.cumsum,
        "aten::cumprod": reference.cumprod,
        "aten::logcumsumexp": reference.logcumsumexp,
    },
    unlike_magnitudes={"aten::logcumsumexp": "addends are given by their logarithms"},
)
