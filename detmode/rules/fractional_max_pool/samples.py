"""Samples of the backward of fractional max pooling."""

from __future__ import annotations

from typing import Any

import torch

from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker, Sample, Samples

OP2D = "aten::fractional_max_pool2d_backward"
OP3D = "aten::fractional_max_pool3d_backward"
INF, NAN = float("inf"), float("nan")
LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def _call(
    m: Maker, shape: tuple[int, ...], kernel: tuple[int, ...], output: tuple[int, ...]
) -> dict[str, Any]:
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


# The indices stay contiguous: ATen's CPU kernel reads them as if they were.
def _strided(call: dict[str, Any]) -> dict[str, Any]:
    for name in ("grad_output", "self"):
        call[name] = call[name].transpose(-1, -3).contiguous().transpose(-1, -3)
    return call


def _last(call: dict[str, Any]) -> dict[str, Any]:
    for name in ("grad_output", "self"):
        form = LAST[call[name].dim() - 2]
        call[name] = call[name].contiguous(memory_format=form)
    return call


def _cut(call: dict[str, Any]) -> dict[str, Any]:
    for name in ("grad_output", "self", "indices"):
        call[name] = call[name][:, :0]
    return call


def _special(call: dict[str, Any], m: Maker) -> dict[str, Any]:
    values = [1.0, NAN, -0.0, 2.0, INF, -INF, INF, 1e-40, 6e-8, -0.0, -0.0, 3e38, 3e38, 3.0]
    call["grad_output"].view(-1)[: len(values)] = m.tensor(values)
    return call


def _onto(m: Maker, position: int, n: int = 2, dtype: torch.dtype = torch.int64) -> dict[str, Any]:
    call = _call(m, (2, 3, *(5, 6, 7)[:n]), (2,) * n, (3,) * n)
    return {**call, "indices": torch.full_like(call["indices"], position, dtype=dtype)}


def _wide(m: Maker, n: int) -> torch.Tensor:
    return m.normal(2, 3, *(5, 6, 7)[:n]).double()


def _with(m: Maker, n: int, **changed: Any) -> dict[str, Any]:
    return {**_call(m, (2, 3, *(5, 6, 7)[:n]), (2,) * n, (3,) * n), **changed}


def _flat(name: str, make: Any, *covers: str) -> Sample:
    return Sample(name=name, op=OP2D, make=make, dtypes=FLOATING, covers=covers)


def _deep(name: str, make: Any, *covers: str) -> Sample:
    return Sample(name=name, op=OP3D, make=make, dtypes=FLOATING, covers=covers)


def _error(name: str, op: str, make: Any, dtype: torch.dtype = torch.float32) -> Sample:
    return Sample(name=name, op=op, make=make, dtypes=(dtype,))


def _bench(name: str, op: str, *arguments: Any) -> Sample:
    return Sample(name=name, op=op, make=lambda m: _call(m, *arguments), dtypes=FLOATING[:3])


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
        _flat("no_channels", lambda m: _cut(_call(m, (2, 3, 9, 8), (3, 3), (6, 5))), "empty"),
        _flat("special", lambda m: _special(_call(m, (1, 2, 9, 11), (3, 3), (7, 8)), m)),
        _flat(
            "strided", lambda m: _strided(_call(m, (2, 3, 9, 8), (3, 3), (6, 5))), "non_contiguous"
        ),
        _flat("last", lambda m: _last(_call(m, (2, 3, 9, 8), (3, 3), (6, 5))), "channels_last"),
        _flat("odd", lambda m: _call(m, (1, 1, 9, 1000), (5, 2), (1, 63)), "odd_sizes"),
        _deep("overlap", lambda m: _call(m, (2, 2, 6, 7, 9), (2, 3, 3), (4, 4, 6)), "collisions"),
        _deep(
            "unlike_axes", lambda m: _call(m, (1, 3, 4, 9, 7), (1, 4, 3), (3, 2, 4)), "collisions"
        ),
        _deep("one_choice", lambda m: _onto(m, 9, 3), "collisions"),
        _deep("unbatched", lambda m: _call(m, (3, 6, 7, 8), (2, 3, 3), (4, 4, 5)), "collisions"),
        _deep("empty_batch", lambda m: _call(m, (0, 3, 6, 7, 8), (2, 3, 3), (4, 4, 5)), "empty"),
        _deep("special", lambda m: _special(_call(m, (1, 2, 5, 6, 7), (2, 3, 3), (3, 3, 4)), m)),
        _deep(
            "strided",
            lambda m: _strided(_call(m, (2, 3, 5, 6, 7), (2, 3, 3), (3, 3, 4))),
            "non_contiguous",
        ),
        _deep(
            "last",
            lambda m: _last(_call(m, (2, 3, 5, 6, 7), (2, 3, 3), (3, 3, 4))),
            "channels_last",
        ),
        _deep("odd", lambda m: _call(m, (1, 1, 2, 63, 99), (1, 3, 3), (1, 1, 63)), "odd_sizes"),
        Sample(name="host", op=OP2D, make=lambda m: _with(m, 2), device="cpu"),
        Sample(name="host", op=OP3D, make=lambda m: _with(m, 3), device="cpu"),
    ),
    errors=tuple(
        _error(f"{name}_{n}d", op, lambda m, make=make, n=n: make(m, n), dtype)
        for n, op in ((2, OP2D), (3, OP3D))
        for name, make, dtype in (
            ("index_too_large", lambda m, n: _onto(m, 999, n), torch.float32),
            ("index_negative", lambda m, n: _onto(m, -1, n), torch.float32),
            ("narrow_indices", lambda m, n: _onto(m, 7, n, torch.int32), torch.float32),
            ("other_output_size", lambda m, n: _with(m, n, output_size=[4] * n), torch.float32),
            ("short_output_size", lambda m, n: _with(m, n, output_size=[4]), torch.float32),
            ("other_dtype", lambda m, n: _with(m, n, self=_wide(m, n)), torch.float32),
            ("no_channels", lambda m, n: _with(m, n, self=m.normal(*(5, 6, 7)[:n])), torch.float32),
            ("integers", lambda m, n: _with(m, n), torch.int64),
        )
    ),
    bench=(
        _bench("first_layer", OP2D, (32, 160, 94, 94), (2, 2), (74, 74)),
        _bench("middle_layer", OP2D, (32, 480, 47, 47), (2, 2), (33, 33)),
        _bench("halved", OP2D, (32, 64, 112, 112), (3, 3), (56, 56)),
        _bench("volume", OP3D, (4, 32, 32, 64, 64), (2, 2, 2), (16, 32, 32)),
    ),
    not_applicable={"negative_dim": "the operator takes no dimension"},
)
