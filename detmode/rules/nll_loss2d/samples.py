"""Samples of the negative log likelihood over images."""

from __future__ import annotations

from typing import Any

import torch

from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker, Sample, Samples

OP = "aten::nll_loss2d_forward"
INF, NAN = float("inf"), float("nan")
MEAN, SUM = 1, 2
IGNORED = -100


def _call(
    m: Maker,
    shape: tuple[int, ...] = (2, 5, 7, 6),
    reduction: int = MEAN,
    weighted: bool = False,
    ignored: int = 0,
) -> dict[str, Any]:
    n, classes, *image = shape
    target = m.integers(0, classes, n, *image)
    target.view(-1)[:ignored] = IGNORED
    return {
        "self": m.normal(*shape),
        "target": target,
        # Weights of one sign: their sum is no small rest of large addends, to divide by.
        "weight": m.normal(classes).abs() if weighted else None,
        "reduction": reduction,
        "ignore_index": IGNORED,
    }


def _with(m: Maker, **changed: Any) -> dict[str, Any]:
    return {**_call(m), **changed}


def _strided(m: Maker) -> dict[str, Any]:
    call = _call(m, weighted=True)
    call["self"] = call["self"].transpose(1, 3).contiguous().transpose(1, 3)
    call["target"] = call["target"].transpose(0, 2).contiguous().transpose(0, 2)
    call["weight"] = call["weight"].repeat_interleave(2)[::2]
    return call


def _expanded(m: Maker) -> dict[str, Any]:
    call = _call(m, (3, 4, 5, 6), SUM)
    call["self"] = call["self"][:1, :, :, :1].expand(3, 4, 5, 6)
    call["target"] = call["target"][:, :1].expand(3, 5, 6)
    return call


def _last(m: Maker) -> dict[str, Any]:
    call = _call(m, weighted=True)
    call["self"] = call["self"].contiguous(memory_format=torch.channels_last)
    return call


def _one_class(m: Maker) -> dict[str, Any]:
    call = _call(m, (2, 3, 40, 33), SUM, weighted=True)
    return {**call, "target": torch.full_like(call["target"], 1)}


def _ignored_class(m: Maker) -> dict[str, Any]:
    # The ignored one may be a class, and its weight then counts nowhere.
    return {**_call(m, weighted=True), "ignore_index": 2}


def _no_classes(m: Maker) -> dict[str, Any]:
    call = _call(m, (2, 0, 3, 4), SUM)
    return {**call, "target": torch.full_like(call["target"], IGNORED)}


def _cancelling(m: Maker) -> dict[str, Any]:
    # Large losses that take each other away: what is left is in the small ones.
    call = _call(m, (1, 2, 30, 40), SUM)
    call["self"][:, :, ::2] *= 512
    call["self"][:, :, 1::2] -= call["self"][:, :, ::2].flip(2)
    return {**call, "target": torch.zeros_like(call["target"])}


def _special(m: Maker, value: float) -> dict[str, Any]:
    call = _call(m, weighted=True)
    call["self"][1, :, 2, 3] = value
    return call


def _sample(name: str, make: Any, *covers: str) -> Sample:
    return Sample(name=name, op=OP, make=make, dtypes=FLOATING, covers=covers)


def _error(name: str, make: Any, dtype: torch.dtype = torch.float32) -> Sample:
    return Sample(name=name, op=OP, make=make, dtypes=(dtype,))


def _bench(name: str, shape: tuple[int, ...], weighted: bool = False) -> Sample:
    return Sample(
        name=name, op=OP, make=lambda m: _call(m, shape, MEAN, weighted), dtypes=FLOATING[:3]
    )


SAMPLES = Samples(
    cases=(
        _sample("mean", lambda m: _call(m), "collisions"),
        _sample("sum", lambda m: _call(m, reduction=SUM), "collisions"),
        _sample("weighted_mean", lambda m: _call(m, weighted=True)),
        _sample("weighted_sum", lambda m: _call(m, reduction=SUM, weighted=True)),
        _sample("some_ignored", lambda m: _call(m, weighted=True, ignored=31)),
        _sample("all_ignored", lambda m: _call(m, ignored=84)),
        _sample("all_ignored_sum", lambda m: _call(m, reduction=SUM, ignored=84)),
        _sample("ignored_class", _ignored_class),
        _sample("no_classes", _no_classes, "empty"),
        _sample("no_images", lambda m: _call(m, (0, 5, 7, 6)), "empty"),
        _sample("no_pixels_sum", lambda m: _call(m, (2, 5, 0, 6), SUM), "empty"),
        _sample("strided", _strided, "non_contiguous"),
        _sample("expanded", _expanded, "non_contiguous"),
        _sample("last", _last, "channels_last"),
        _sample("one_class", _one_class, "collisions"),
        _sample("cancelling", _cancelling),
        _sample("nan", lambda m: _special(m, NAN)),
        _sample("infinity", lambda m: _special(m, INF)),
        _sample("odd", lambda m: _call(m, (1, 3, 63, 47), weighted=True, ignored=9), "odd_sizes"),
        _sample("one_pixel", lambda m: _call(m, (1, 1, 1, 1)), "odd_sizes"),
        Sample(name="no_reduction", op=OP, make=lambda m: _call(m, reduction=0)),
        Sample(name="host", op=OP, make=lambda m: _call(m), device="cpu"),
    ),
    errors=(
        _error("class_too_large", lambda m: _with(m, target=m.integers(5, 6, 2, 7, 6))),
        _error("negative_class", lambda m: _with(m, target=m.integers(-1, 0, 2, 7, 6))),
        _error("few_weights", lambda m: _with(m, weight=m.normal(4))),
        _error("fewer_images", lambda m: _with(m, target=m.integers(0, 5, 1, 7, 6))),
        _error("other_size", lambda m: _with(m, target=m.integers(0, 5, 2, 6, 7))),
        _error("unbatched", lambda m: _with(m, self=m.normal(5, 7, 6))),
        _error("flat_target", lambda m: _with(m, target=m.integers(0, 5, 2, 42))),
        _error("byte_target", lambda m: _with(m, target=m.integers(0, 5, 2, 7, 6).byte())),
        _error("int_target", lambda m: _with(m, target=m.integers(0, 5, 2, 7, 6).int())),
        _error("mixed_dtypes", lambda m: _with(m, weight=m.normal(5).double())),
        _error("integers", lambda m: _call(m), torch.int64),
    ),
    bench=(
        _bench("cityscapes", (4, 19, 512, 1024), True),
        _bench("ade20k", (8, 150, 512, 512)),
        _bench("unet3d", (2, 4, 128, 128 * 128)),
        _bench("voc", (16, 21, 321, 321)),
    ),
    not_applicable={"negative_dim": "the operator takes no dimension"},
)
