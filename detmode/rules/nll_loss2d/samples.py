"""Samples of the negative log likelihood over images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, nan

import torch
from torch import Tensor

from detmode.table.conditions import FLOATING
from detmode.table.inputs import LAYOUTS, Arguments
from detmode.table.samples import Maker, Samples, sample

OP = "aten::nll_loss2d_forward"
MEAN, SUM = 1, 2
IGNORED = -100


def _call(
    m: Maker,
    shape: tuple[int, ...] = (2, 5, 7, 6),
    reduction: int = MEAN,
    weighted: bool = False,
    ignored: int = 0,
) -> Arguments:
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


def _cancelling(m: Maker) -> Arguments:
    # Large losses that take each other away: what is left is in the small ones.
    call = _call(m, (1, 2, 30, 40), SUM)
    call["self"][:, :, ::2] *= 512
    call["self"][:, :, 1::2] -= call["self"][:, :, ::2].flip(2)
    return {**call, "target": torch.zeros_like(call["target"])}


_case = partial(sample, op=OP, dtypes=FLOATING)
_bench = partial(sample, op=OP, dtypes=FLOATING[:3])
_plain = sample("plain", _call, op=OP)
_weighted = _case("weighted_mean", lambda m: _call(m, weighted=True), variants=LAYOUTS)
_sums = _case("sums", lambda m: _call(m, (3, 4, 5, 6), SUM))


def _special(value: float) -> Callable[[Tensor], Tensor]:
    def changed(self: Tensor) -> Tensor:
        self[1, :, 2, 3] = value
        return self

    return changed


SAMPLES = Samples(
    cases=(
        _case("mean", _call, "collisions", variants=("cpu",)),
        _case("sum", lambda m: _call(m, reduction=SUM), "collisions"),
        _weighted,
        _case("weighted_sum", lambda m: _call(m, reduction=SUM, weighted=True)),
        _case("some_ignored", lambda m: _call(m, weighted=True, ignored=31)),
        _case("all_ignored", lambda m: _call(m, ignored=84)),
        _case("all_ignored_sum", lambda m: _call(m, reduction=SUM, ignored=84)),
        # The ignored one may be a class, and its weight then counts nowhere.
        _weighted.but("ignored_class", ignore_index=2),
        _case("no_classes", lambda m: _call(m, (2, 0, 3, 4), SUM, ignored=24), "empty"),
        _case("no_images", lambda m: _call(m, (0, 5, 7, 6)), "empty"),
        _case("no_pixels_sum", lambda m: _call(m, (2, 5, 0, 6), SUM), "empty"),
        _weighted.but(
            *("strided", "non_contiguous"),
            self=lambda self: self.transpose(1, 3).contiguous().transpose(1, 3),
            target=lambda target: target.transpose(0, 2).contiguous().transpose(0, 2),
            weight=lambda weight: weight.repeat_interleave(2)[::2],
        ),
        _sums.but(
            *("expanded", "non_contiguous"),
            self=lambda self: self[:1, :, :, :1].expand(3, 4, 5, 6),
            target=lambda target: target[:, :1].expand(3, 5, 6),
        ),
        _case("classes", lambda m: _call(m, (2, 3, 40, 33), SUM, weighted=True)).but(
            *("one_class", "collisions"), target=torch.ones_like
        ),
        _case("cancelling", _cancelling),
        _weighted.but("nan", self=_special(nan)),
        _weighted.but("infinity", self=_special(inf)),
        _case("odd", lambda m: _call(m, (1, 3, 63, 47), weighted=True, ignored=9), "odd_sizes"),
        _case("one_pixel", lambda m: _call(m, (1, 1, 1, 1)), "odd_sizes"),
        sample("no_reduction", lambda m: _call(m, reduction=0), op=OP),
    ),
    errors=(
        _plain.but("class_too_large", target=lambda target: target + 5),
        _plain.but("negative_class", target=lambda target: ~target),
        _plain.but("few_weights", weight=torch.ones(4, device="cpu")),
        _plain.but("fewer_images", target=lambda target: target[:1]),
        _plain.but("other_size", target=lambda target: target.mT),
        _plain.but("unbatched", self=lambda self: self[0]),
        _plain.but("flat_target", target=lambda target: target.flatten(1)),
        _plain.but("byte_target", target=Tensor.byte),
        _plain.but("int_target", target=Tensor.int),
        _plain.but("mixed_dtypes", weight=torch.ones(5, dtype=torch.float64, device="cpu")),
        _plain.but("integers", dtypes=(torch.int64,)),
    ),
    bench=(
        _bench("cityscapes", lambda m: _call(m, (4, 19, 512, 1024), weighted=True)),
        _bench("ade20k", lambda m: _call(m, (8, 150, 512, 512))),
        _bench("unet3d", lambda m: _call(m, (2, 4, 128, 128 * 128))),
        _bench("voc", lambda m: _call(m, (16, 21, 321, 321))),
    ),
    not_applicable={"negative_dim": "the operator takes no dimension"},
)
