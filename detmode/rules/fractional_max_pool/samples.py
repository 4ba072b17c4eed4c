"""Samples of the backward of fractional max pooling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from detmode.table.conditions import FLOATING
from detmode.table.inputs import Arguments, cut, last, special, strided
from detmode.table.samples import Maker, Sample, Samples, made_by

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


_flat = made_by(_call, op=OP2D, dtypes=FLOATING)
_deep = made_by(_call, op=OP3D, dtypes=FLOATING)
_chosen = made_by(_onto)
_bench = made_by(_call, dtypes=FLOATING[:3])
_special = partial(special, name="grad_output")
_strided, _last = partial(_stored, strided), partial(_stored, last)


def _errors(op: str, n: int) -> tuple[Sample, ...]:
    right = _chosen("right", 7, n, op=op)
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


SAMPLES = Samples(
    cases=(
        _flat("overlap", (2, 3, 9, 11), (3, 3), (7, 8), covers="collisions"),
        _flat("wide_regions", (1, 2, 12, 13), (7, 8), (6, 6), covers="collisions"),
        _flat("apart", (2, 2, 13, 17), (2, 3), (5, 5)),
        _flat("one_region", (2, 2, 6, 7), (2, 3), (1, 1)),
        _chosen("one_choice", 7, covers="collisions", op=OP2D, dtypes=FLOATING),
        _flat("one_plane", (1, 1, 9, 11), (3, 3), (7, 8), covers="collisions"),
        _flat("unbatched", (3, 9, 11), (3, 3), (7, 8), covers="collisions"),
        _flat("large_planes", (1, 1, 40, 50), (2, 2), (3, 4)),
        _flat("empty_batch", (0, 3, 9, 11), (3, 3), (7, 8), covers="empty"),
        _flat("planes", (2, 3, 9, 8), (3, 3), (6, 5)).but(
            "no_channels", "empty", grad_output=cut(2, 0), self=cut(2, 0), indices=cut(2, 0)
        ),
        _flat("special", (1, 2, 9, 11), (3, 3), (7, 8), form=_special),
        _flat("strided", (2, 3, 9, 8), (3, 3), (6, 5), covers="non_contiguous", form=_strided),
        _flat("last", (2, 3, 9, 8), (3, 3), (6, 5), covers="channels_last", form=_last),
        _flat("odd", (1, 1, 9, 1000), (5, 2), (1, 63), covers="odd_sizes"),
        _deep("overlap", (2, 2, 6, 7, 9), (2, 3, 3), (4, 4, 6), covers="collisions"),
        _deep("unlike_axes", (1, 3, 4, 9, 7), (1, 4, 3), (3, 2, 4), covers="collisions"),
        _chosen("one_choice", 9, 3, covers="collisions", op=OP3D, dtypes=FLOATING),
        _deep("unbatched", (3, 6, 7, 8), (2, 3, 3), (4, 4, 5), covers="collisions"),
        _deep("empty_batch", (0, 3, 6, 7, 8), (2, 3, 3), (4, 4, 5), covers="empty"),
        _deep("special", (1, 2, 5, 6, 7), (2, 3, 3), (3, 3, 4), form=_special),
        _deep(
            "strided", (2, 3, 5, 6, 7), (2, 3, 3), (3, 3, 4), covers="non_contiguous", form=_strided
        ),
        _deep("last", (2, 3, 5, 6, 7), (2, 3, 3), (3, 3, 4), covers="channels_last", form=_last),
        _deep("odd", (1, 1, 2, 63, 99), (1, 3, 3), (1, 1, 63), covers="odd_sizes"),
        _chosen("host", 7, op=OP2D, device="cpu"),
        _chosen("host", 7, 3, op=OP3D, device="cpu"),
    ),
    errors=(*_errors(OP2D, 2), *_errors(OP3D, 3)),
    bench=(
        _bench("first_layer", (32, 160, 94, 94), (2, 2), (74, 74), op=OP2D),
        _bench("middle_layer", (32, 480, 47, 47), (2, 2), (33, 33), op=OP2D),
        _bench("halved", (32, 64, 112, 112), (3, 3), (56, 56), op=OP2D),
        _bench("volume", (4, 32, 32, 64, 64), (2, 2, 2), (16, 32, 32), op=OP3D),
    ),
    not_applicable={"negative_dim": "the operator takes no dimension"},
)
