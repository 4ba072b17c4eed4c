"""Samples of max unpooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from detmode.rules.index.arguments import Assigned, places, reverse
from detmode.table.conditions import FLOATING, INTEGRAL
from detmode.table.samples import Maker, Sample, Samples

FEW = (torch.bfloat16, torch.float64, torch.uint8)
TWO, THREE = "aten::max_unpool2d", "aten::max_unpool3d"


def unpool(
    make: Maker, shape: Sequence[int], output_size: Sequence[int], spread: int | None = None
) -> dict[str, Any]:
    """Indices into the first ``spread`` places of each plane."""
    size = prod(output_size)
    arguments: dict[str, Any] = {
        "self": make.normal(*shape),
        "indices": make.integers(0, min(spread or size, size), *shape),
        "output_size": list(output_size),
    }
    if len(output_size) == 3:
        arguments |= {"stride": [2, 2, 2], "padding": [0, 0, 0]}
    return arguments


def laid_out(arguments: dict[str, Any], format: torch.memory_format | None = None) -> Any:
    """The same with the tensors in ``format``, or stored back to front."""
    for name in ("self", "indices"):
        tensor = arguments[name]
        arguments[name] = tensor.contiguous(memory_format=format) if format else reverse(tensor)
    return arguments


def pooled(make: Maker) -> dict[str, Any]:
    """What max pooling with overlapping windows gives."""
    input = make.normal(2, 3, 9, 9)
    _, indices = torch.nn.functional.max_pool2d(
        input.float().cpu(), 3, stride=1, return_indices=True
    )
    arguments = unpool(make, indices.shape, [9, 9])
    return arguments | {"indices": indices.to(make.device)}


def _unpools(
    op: str, name: str, make: Any, *covers: str, dtypes: Any = FEW, device: str = "cuda"
) -> Sample:
    return Sample(name=name, op=op, make=make, covers=covers, dtypes=dtypes, device=device)


def _both(name: str, two: Any, three: Any, *covers: str, **more: Any) -> tuple[Sample, ...]:
    return _unpools(TWO, name, two, *covers, **more), _unpools(THREE, name, three, *covers, **more)


def _assigned(self: Any, indices: Any, output_size: Any, **unread: Any) -> Assigned:
    dims = len(output_size)
    before = self.new_zeros((*self.shape[:-dims], *output_size))
    return before, places(before).flatten(-dims).gather(-1, indices.flatten(-dims)), self


def _replaced(arguments: dict[str, Any], change: Any) -> dict[str, Any]:
    return arguments | {"indices": change(arguments["indices"])}


SAMPLES = Samples(
    cases=(
        *(
            sample
            for name, device, dtypes in (
                ("shared_indices", "cuda", FLOATING + INTEGRAL),
                ("host", "cpu", FLOATING),
                ("no_data", "meta", FLOATING),
                ("elsewhere", "xpu", FLOATING),
            )
            for sample in _both(
                name,
                lambda m: unpool(m, [2, 3, 4, 5], [8, 10], 9),
                lambda m: unpool(m, [2, 3, 2, 3, 2], [4, 6, 4], 9),
                "collisions",
                dtypes=dtypes,
                device=device,
            )
        ),
        *_both(
            "one_destination",
            lambda m: unpool(m, [2, 30, 10], [4, 4], 1),
            lambda m: unpool(m, [2, 9, 5, 5], [4, 4, 4], 1),
            "collisions",
        ),
        _unpools(TWO, "overlapping_windows", pooled, "collisions"),
        *_both(
            "large_output",
            lambda m: unpool(m, [2, 3, 3, 3], [20, 30], 9),
            lambda m: unpool(m, [2, 3, 1, 3, 3], [5, 6, 7], 9),
            "collisions",
            dtypes=FLOATING,
        ),
        *_both(
            "odd_1",
            lambda m: unpool(m, [1, 1, 1], [1, 1]),
            lambda m: unpool(m, [1, 1, 1, 1], [1, 1, 1]),
            "odd_sizes",
        ),
        *_both(
            "odd_sizes",
            lambda m: unpool(m, [3, 63, 7], [31, 33]),
            lambda m: unpool(m, [1, 1000, 1, 1], [7, 11, 13]),
            "odd_sizes",
        ),
        *_both(
            "no_batch",
            lambda m: unpool(m, [0, 3, 4, 5], [8, 10]),
            lambda m: unpool(m, [0, 3, 2, 3, 2], [4, 6, 4]),
            "empty",
        ),
        *_both(
            "channels_last",
            lambda m: laid_out(unpool(m, [2, 3, 4, 5], [8, 10], 20), torch.channels_last),
            lambda m: laid_out(unpool(m, [2, 3, 2, 3, 4], [4, 6, 8], 9), torch.channels_last_3d),
            "channels_last",
            "collisions",
        ),
        *_both(
            "non_contiguous",
            lambda m: laid_out(unpool(m, [2, 3, 4, 5], [8, 10], 20)),
            lambda m: laid_out(unpool(m, [2, 3, 2, 3, 4], [4, 6, 8], 9)),
            "non_contiguous",
        ),
    ),
    errors=tuple(
        _unpools(op, name, make, dtypes=FLOATING[2:])
        for op, shape, size in ((TWO, [2, 3, 4, 5], [8, 10]), (THREE, [2, 3, 4, 5, 2], [8, 10, 4]))
        for name, make in (
            (
                "too_large",
                lambda m, s=shape, o=size: _replaced(unpool(m, s, o), lambda i: i + prod(o)),
            ),
            (
                "negative",
                lambda m, s=shape, o=size: _replaced(unpool(m, s, o), lambda i: i - prod(o)),
            ),
            ("int32", lambda m, s=shape, o=size: _replaced(unpool(m, s, o), lambda i: i.int())),
            ("other_shape", lambda m, s=shape, o=size: _replaced(unpool(m, s, o), lambda i: i[:1])),
            ("no_channels", lambda m, s=shape, o=size: unpool(m, [2, 0, *s[2:]], o)),
            ("too_few_sizes", lambda m, s=shape, o=size: unpool(m, s, o) | {"output_size": [8]}),
            ("no_channel_dimension", lambda m, s=shape, o=size: unpool(m, s[2:], o)),
        )
    ),
    bench=(
        _unpools(
            TWO,
            "segnet_8x64_to_360x480",
            lambda m: unpool(m, [8, 64, 180, 240], [360, 480]),
            dtypes=FLOATING[:3],
        ),
        _unpools(
            THREE,
            "unet3d_2x32_to_64x128x128",
            lambda m: unpool(m, [2, 32, 32, 64, 64], [64, 128, 128]),
            dtypes=FLOATING[:3],
        ),
    ),
    not_applicable={"negative_dim": "max unpooling takes no dimension"},
    assignments={TWO: _assigned, THREE: _assigned},
)
