"""Samples of adaptive average pooling's backward."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from detmode.table.compositions import transposed
from detmode.table.conditions import FLOATING
from detmode.table.inputs import LAYOUTS, Arguments, last, special
from detmode.table.samples import Maker, Sample, Samples, sample

OP2D = "aten::_adaptive_avg_pool2d_backward"
OP3D = "aten::_adaptive_avg_pool3d_backward"
OP3D_OUT = "aten::adaptive_avg_pool3d_backward.grad_input"


def _pair(
    m: Maker, leading: tuple[int, ...], size_in: tuple[int, ...], size_out: tuple[int, ...]
) -> Arguments:
    return {"grad_output": m.normal(*leading, *size_out), "self": m.normal(*leading, *size_in)}


def _out(m: Maker) -> Arguments:
    return _pair(m, (2, 3), (5, 7, 4), (3, 2, 5)) | {"grad_input": m.tensor([])}


def _sliced(m: Maker, leading: tuple[int, ...], *sizes: tuple[int, ...]) -> Arguments:
    size_in, size_out = (tuple(2 * size for size in axis) for axis in sizes)
    pair = _pair(m, leading, size_in, size_out)
    return {name: tensor[..., ::2, 1::2] for name, tensor in pair.items()}


_flat, _deep = partial(sample, op=OP2D, dtypes=FLOATING), partial(sample, op=OP3D, dtypes=FLOATING)
_flat_error, _deep_error = partial(sample, op=OP2D), partial(sample, op=OP3D)
_plain = _flat_error("plain", lambda m: _pair(m, (2, 3), (5, 5), (2, 2)))


def _bench(name: str, op: str, *shape: Any, stored: Any = dict) -> Sample:
    return sample(name, lambda m: stored(_pair(m, *shape)), op=op, dtypes=FLOATING[:3])


def _composed(grad_output: Tensor, self: Tensor, *, dims: int) -> Tensor:
    def forward(unit: Tensor, number: int) -> Tensor:
        return F.adaptive_avg_pool1d(unit[None], grad_output.shape[number - dims])[0]

    return transposed(grad_output, self.shape[-dims:], forward)


SAMPLES = Samples(
    cases=(
        _flat(
            "overlap",
            lambda m: _pair(m, (2, 3), (11, 13), (7, 8)),
            "collisions",
            variants=(*LAYOUTS, "cpu"),
        ),
        _flat("upsampling", lambda m: _pair(m, (2, 3), (3, 2), (16, 21)), "collisions"),
        _flat("divisible", lambda m: _pair(m, (3, 2), (12, 8), (4, 2))),
        _flat("identity", lambda m: _pair(m, (2, 5), (7, 7), (7, 7))),
        _flat("one_dimensional", lambda m: _pair(m, (2, 4, 1), (63,), (10,))),
        _flat("unbatched", lambda m: _pair(m, (5,), (9, 10), (4, 3))),
        _flat("empty_batch", lambda m: _pair(m, (0, 3), (9, 10), (4, 3)), "empty"),
        _flat("special", lambda m: special(_pair(m, (1,), (7, 6), (3, 5)), "grad_output")),
        _flat("strided", lambda m: _sliced(m, (2, 3), (9, 10), (4, 3)), "non_contiguous"),
        _flat("last_many", lambda m: last(_pair(m, (2, 72), (43, 43), (6, 5))), "channels_last"),
        _flat("odd", lambda m: _pair(m, (1, 1), (63, 1000), (10, 63)), "odd_sizes"),
        _flat("odd_many", lambda m: _pair(m, (3, 3), (30, 1000), (7, 63)), "odd_sizes"),
        _deep(
            "overlap",
            lambda m: _pair(m, (2, 3), (5, 7, 4), (3, 4, 3)),
            "collisions",
            variants=(*LAYOUTS, "cpu"),
        ),
        _deep("upsampling", lambda m: _pair(m, (1, 2), (2, 3, 4), (5, 5, 5)), "collisions"),
        _deep("divisible", lambda m: _pair(m, (1, 2), (4, 6, 8), (2, 3, 4))),
        _deep("unbatched", lambda m: _pair(m, (3,), (4, 5, 6), (3, 2, 4))),
        _deep("empty_batch", lambda m: _pair(m, (0, 3), (4, 5, 6), (3, 2, 4)), "empty"),
        _deep("strided", lambda m: _sliced(m, (2,), (3, 9, 10), (2, 4, 3)), "non_contiguous"),
        _deep("odd_many", lambda m: _pair(m, (1, 9), (1, 63, 500), (1, 8, 7)), "odd_sizes"),
        _deep("odd", lambda m: _pair(m, (1, 1), (1, 63, 1000), (3, 10, 63)), "odd_sizes"),
        sample("resized", _out, "collisions", op=OP3D_OUT, dtypes=FLOATING, variants=("cpu",)),
    ),
    errors=(
        _flat_error("no_rows_out", lambda m: _pair(m, (2, 3), (5, 5), (0, 2))),
        _flat_error("no_channels", lambda m: _pair(m, (2, 0), (5, 5), (2, 2))),
        _flat_error("two_dimensions", lambda m: _pair(m, (), (5, 5), (2, 2))),
        _flat_error("mixed_dimensions", lambda m: _pair(m, (2,), (3, 5, 5), (2, 2))),
        _plain.but("mixed_dtypes", grad_output=Tensor.double),
        _plain.but("integers", dtypes=(torch.int64,)),
        _deep_error("no_rows_out", lambda m: _pair(m, (2, 3), (5, 5, 5), (2, 0, 2))),
        _deep_error("mixed_dimensions", lambda m: _pair(m, (2,), (3, 5, 5, 5), (2, 2, 2))),
    ),
    bench=(
        _bench("vgg16_head", OP2D, (64, 512), (7, 7), (7, 7)),
        _bench("alexnet_head_320px", OP2D, (128, 256), (9, 9), (6, 6)),
        *(_bench(f"pspnet_bin{o}", OP2D, (4, 2048), (60, 60), (o, o)) for o in (2, 3, 6)),
        *(
            _bench(f"pspnet_bin{o}_last", OP2D, (4, 2048), (60, 60), (o, o), stored=last)
            for o in (2, 3, 6)
        ),
        _bench("area_half", OP2D, (8, 64), (224, 224), (112, 112)),
        _bench("waveform_1d", OP2D, (16, 256, 1), (16000,), (300,)),
        _bench("slowfast_head", OP3D, (8, 2048), (8, 7, 7), (2, 7, 7)),
        _bench("video_to_7x7", OP3D, (8, 256), (16, 56, 56), (8, 7, 7)),
        _bench("unet3d_pyramid", OP3D, (2, 320), (40, 40, 40), (6, 6, 6)),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
    compositions={OP2D: partial(_composed, dims=2), OP3D: partial(_composed, dims=3)},
)
