"""Samples of the backward of fractional max pooling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from detmode.table.compositions import max_pool_backward
from detmode.table.conditions import FLOATING
from detmode.table.inputs import Arguments, cut, last, special, strided
from detmode.table.samples import Maker, Sample, Samples, sample

OP2D = "aten::fractional_max_pool2d_backward"
OP3D = "aten::fractional_max_pool3d_backward"


def _call(
    m: Maker, shape: tuple[int, ...], kernel: tuple[int, ...], output: tuple[int, ...]
) -> Arguments:
    n = len(kernel)
    # Small integers: regions have ties, and some elements are chosen by many regions.
    self = m.integers(-3, 4, *shape, dtype=m.dtype)
    batched = self.cpu().double().view(shape if len(shape) == n + 2 else (1, *shape))
    starts = m.integers(0, 100, *batched.shape[:2], n).cpu().double() / 100
    pool = {2: torch.ops.aten.fractional_max_pool2d, 3: torch.ops.aten.fractional_max_pool3d}[n]
    indices = pool(batched, kernel, output, starts)[1].view(*shape[:-n], *output).to(m.device)
    return {
        "grad_output": m.normal(*indices.shape),
        "self": self,
        "kernel_size": list(kernel),
        "output_size": list(output),
        "indices": indices,
    }


def _stored(change: Callable[[Arguments], Arguments], call: Arguments) -> Arguments:
    # The indices stay contiguous: ATen's CPU kernel reads them as if they were.
    return change(call) | {"indices": call["indices"]}


def _onto(m: Maker, position: int, n: int = 2) -> Arguments:
    call = _call(m, (2, 3, *(5, 6, 7)[:n]), (2,) * n, (3,) * n)
    return {**call, "indices": torch.full_like(call["indices"], position)}


_flat, _deep = partial(sample, op=OP2D, dtypes=FLOATING), partial(sample, op=OP3D, dtypes=FLOATING)


def _errors(op: str, n: int) -> tuple[Sample, ...]:
    right = sample("right", lambda m: _onto(m, 7, n), op=op)
    return (
        right.but("index_too_large", indices=lambda indices: indices + 992),
        right.but("index_negative", indices=lambda indices: indices - 8),
        right.but("narrow_indices", indices=Tensor.int),
        right.but("other_output_size", output_size=[4] * n),
        right.but("short_output_size", output_size=[4]),
        right.but("other_dtype", self=Tensor.double),
        right.but("no_channels", self=lambda self: self[0, 0]),
        right.but("integers", dtypes=(torch.int64,)),
    )


def _bench(name: str, op: str, *arguments: Any) -> Sample:
    return sample(name, lambda m: _call(m, *arguments), op=op, dtypes=FLOATING[:3])


SAMPLES = Samples(
    cases=(
        _flat("overlap", lambda m: _call(m, (2, 3, 9, 11), (3, 3), (7, 8)), "collisions"),
        _flat("wide_regions", lambda m: _call(m, (1, 2, 12, 13), (7, 8), (6, 6)), "collisions"),
        _flat("apart", lambda m: _call(m, (2, 2, 13, 17), (2, 3), (5, 5))),
        _flat("one_region", lambda m: _call(m, (2, 2, 6, 7), (2, 3), (1, 1))),
        _flat("one_choice", lambda m: _onto(m, 7), "collisions"),
        _flat("one_plane", lambda m: _call(m, (1, 1, 9, 11), (3, 3), (7, 8)), "collisions"),
        _flat("unbatched", lambda m: _call(m, (3, 9, 11), (3, 3), (7, 8)), "collisions"),
        _flat("large_planes", lambda m: _call(m, (1, 1, 40, 50), (2, 2), (3, 4))),
        _flat("empty_batch", lambda m: _call(m, (0, 3, 9, 11), (3, 3), (7, 8)), "empty"),
        _flat("planes", lambda m: _call(m, (2, 3, 9, 8), (3, 3), (6, 5))).but(
            "no_channels", "empty", grad_output=cut(2, 0), self=cut(2, 0), indices=cut(2, 0)
        ),
        _flat("special", lambda m: special(_call(m, (1, 2, 9, 11), (3, 3), (7, 8)), "grad_output")),
        _flat(
            "strided",
            lambda m: _stored(strided, _call(m, (2, 3, 9, 8), (3, 3), (6, 5))),
            "non_contiguous",
        ),
        _flat(
            "last", lambda m: _stored(last, _call(m, (2, 3, 9, 8), (3, 3), (6, 5))), "channels_last"
        ),
        _flat("odd", lambda m: _call(m, (1, 1, 9, 1000), (5, 2), (1, 63)), "odd_sizes"),
        _deep("overlap", lambda m: _call(m, (2, 2, 6, 7, 9), (2, 3, 3), (4, 4, 6)), "collisions"),
        _deep(
            "unlike_axes", lambda m: _call(m, (1, 3, 4, 9, 7), (1, 4, 3), (3, 2, 4)), "collisions"
        ),
        _deep("one_choice", lambda m: _onto(m, 9, 3), "collisions"),
        _deep("unbatched", lambda m: _call(m, (3, 6, 7, 8), (2, 3, 3), (4, 4, 5)), "collisions"),
        _deep("empty_batch", lambda m: _call(m, (0, 3, 6, 7, 8), (2, 3, 3), (4, 4, 5)), "empty"),
        _deep(
            "special",
            lambda m: special(_call(m, (1, 2, 5, 6, 7), (2, 3, 3), (3, 3, 4)), "grad_output"),
        ),
        _deep(
            "strided",
            lambda m: _stored(strided, _call(m, (2, 3, 5, 6, 7), (2, 3, 3), (3, 3, 4))),
            "non_contiguous",
        ),
        _deep(
            "last",
            lambda m: _stored(last, _call(m, (2, 3, 5, 6, 7), (2, 3, 3), (3, 3, 4))),
            "channels_last",
        ),
        _deep("odd", lambda m: _call(m, (1, 1, 2, 63, 99), (1, 3, 3), (1, 1, 63)), "odd_sizes"),
        sample("host", lambda m: _onto(m, 7), op=OP2D, device="cpu"),
        sample("host", lambda m: _onto(m, 7, 3), op=OP3D, device="cpu"),
    ),
    errors=(*_errors(OP2D, 2), *_errors(OP3D, 3)),
    bench=(
        _bench("first_layer", OP2D, (32, 160, 94, 94), (2, 2), (74, 74)),
        _bench("middle_layer", OP2D, (32, 480, 47, 47), (2, 2), (33, 33)),
        _bench("halved", OP2D, (32, 64, 112, 112), (3, 3), (56, 56)),
        _bench("volume", OP3D, (4, 32, 32, 64, 64), (2, 2, 2), (16, 32, 32)),
    ),
    not_applicable={"negative_dim": "the operator takes no dimension"},
    compositions={
        OP2D: partial(max_pool_backward, dims=2),
        OP3D: partial(max_pool_backward, dims=3),
    },
)
