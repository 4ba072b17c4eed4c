"""Samples of the backward of replication padding."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from detmode.conditions import COMPLEX, FLOATING
from detmode.sample import Maker, Sample

DTYPES = FLOATING + COMPLEX
INF, NAN = float("inf"), float("nan")

NOT_APPLICABLE: dict[str, str] = {"negative_dim": "the operators take no dimension"}


def _call(
    m: Maker, shape: tuple[int, ...], padding: tuple[int, ...], last: bool = False
) -> dict[str, Any]:
    padded = list(shape)
    for axis in range(len(padding) // 2):
        padded[-1 - axis] += padding[2 * axis] + padding[2 * axis + 1]
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    memory_format = formats[len(shape)] if last else torch.contiguous_format
    return {
        "grad_output": m.normal(*padded).contiguous(memory_format=memory_format),
        "self": m.normal(*shape),
        "padding": list(padding),
    }


def _strided(m: Maker, shape: tuple[int, ...], padding: tuple[int, ...]) -> dict[str, Any]:
    call = _call(m, shape, padding)
    for name in ("grad_output", "self"):
        call[name] = call[name].transpose(0, -1).contiguous().transpose(0, -1)
    return call


def _special(m: Maker, n: int) -> dict[str, Any]:
    call = _call(m, (2, 3, *(5, 4, 6)[:n]), (3, 2) * n)
    values = m.tensor([1.0, NAN, -0.0, 2.0, INF, -INF, 1e-40, 6e-8, -0.0, -0.0, 3e38, 3e38, 3.0])
    call["grad_output"].view(-1)[:: 60 // len(values)][: len(values)] = values
    return call


def _changed(m: Maker, n: int, **changed: Any) -> dict[str, Any]:
    return {**_call(m, (2, 3, *(5, 4, 6)[:n]), (2, 1) * n), **changed}


def _samples(n: int) -> tuple[Sample, ...]:
    sizes, pads = (5, 4, 6)[:n], (3, 1, 2, 0, 1, 4)[: 2 * n]
    long = ((3,), (2, 3), (2, 1, 3))[n - 1]
    odd = ((1001,), (63, 101), (7, 9, 65))[n - 1]
    samples = [
        ("both_sides", partial(_call, shape=(2, 3, *sizes), padding=pads), ("collisions",)),
        ("wide", partial(_call, shape=(2, 3, *sizes), padding=(7,) * 2 * n), ("collisions",)),
        ("long", partial(_call, shape=(2, 3, *long), padding=(101, 70) + (5, 6) * (n - 1)), ()),
        ("no_padding", partial(_call, shape=(2, 3, *sizes), padding=(0,) * 2 * n), ()),
        ("cropped", partial(_call, shape=(2, 3, *sizes), padding=(-1, -2) * n), ()),
        (
            "shifted",
            partial(_call, shape=(2, 3, *sizes), padding=(4, -2, -1, 3, -2, 2)[: 2 * n]),
            (),
        ),
        ("cut_off", partial(_call, shape=(2, 3, *sizes), padding=(-7, 8) * n), ()),
        ("unbatched", partial(_call, shape=(3, *sizes), padding=pads), ()),
        ("empty_batch", partial(_call, shape=(0, 3, *sizes), padding=pads), ("empty",)),
        ("special_values", partial(_special, n=n), ()),
        ("strided", partial(_strided, shape=(2, 3, *sizes), padding=pads), ("non_contiguous",)),
        ("odd", partial(_call, shape=(1, 3, *odd), padding=pads), ("odd_sizes",)),
    ]
    if n > 1:
        last = partial(_call, shape=(2, 3, *sizes), padding=pads, last=True)
        samples.append(("last", last, ("channels_last",)))
    op = f"aten::replication_pad{n}d_backward"
    return (
        *(Sample(name=a, op=op, make=b, dtypes=DTYPES, covers=c) for a, b, c in samples),
        Sample(name="host", op=op, make=samples[0][1], device="cpu"),
    )


def _errors(n: int) -> tuple[Sample, ...]:
    op = f"aten::replication_pad{n}d_backward"
    return (
        Sample(name="wrong_shape", op=op, make=lambda m: _changed(m, n, padding=[2, 2] * n)),
        Sample(name="integers", op=op, make=partial(_changed, n=n), dtypes=(torch.int64,)),
        Sample(
            name="mixed_dtypes",
            op=op,
            make=lambda m: _changed(m, n, self=m.normal(2, 3, *(5, 4, 6)[:n], dtype=torch.float64)),
        ),
    )


SAMPLES: tuple[Sample, ...] = tuple(sample for n in (1, 2, 3) for sample in _samples(n))
ERRORS: tuple[Sample, ...] = (
    *(sample for n in (1, 2, 3) for sample in _errors(n)),
    Sample(
        name="much_padding",
        op="aten::replication_pad1d_backward",
        make=lambda m: _changed(m, 1, padding=[2, 1, 0]),
    ),
    Sample(
        name="much_padding",
        op="aten::replication_pad2d_backward",
        make=lambda m: _changed(m, 2, padding=[2, 1, 2, 1, 0]),
    ),
    Sample(
        name="much_padding",
        op="aten::replication_pad3d_backward",
        make=lambda m: _changed(m, 3, padding=[2, 1, 2, 1, 2, 1, 0]),
    ),
)


def _bench(name: str, shape: tuple[int, ...], padding: tuple[int, ...]) -> Sample:
    op = f"aten::replication_pad{len(padding) // 2}d_backward"
    return Sample(name=name, op=op, make=lambda m: _call(m, shape, padding), dtypes=FLOATING[:3])


BENCH: tuple[Sample, ...] = (
    _bench("vocoder", (16, 512, 8192), (3, 3)),
    _bench("causal_audio", (8, 64, 65536), (512, 0)),
    _bench("image_to_image", (8, 64, 256, 256), (1, 1, 1, 1)),
    _bench("flow_sizes", (4, 3, 436, 1024), (0, 0, 2, 2)),
    _bench("wide_border", (4, 64, 128, 128), (32, 32, 32, 32)),
    _bench("causal_video", (1, 128, 17, 128, 128), (1, 1, 1, 1, 2, 0)),
    _bench("unet3d", (2, 32, 64, 64, 64), (1, 1, 1, 1, 1, 1)),
)
