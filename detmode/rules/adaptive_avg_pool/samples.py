"""Samples of adaptive average pooling's backward."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from detmode.table.conditions import FLOATING
from detmode.table.inputs import LAYOUTS, Arguments, last, special
from detmode.table.samples import Maker, Samples, made_by

OP2D = "aten::_adaptive_avg_pool2d_backward"
OP3D = "aten::_adaptive_avg_pool3d_backward"
OP3D_OUT = "aten::adaptive_avg_pool3d_backward.grad_input"


def _pair(
    m: Maker, leading: tuple[int, ...], size_in: tuple[int, ...], size_out: tuple[int, ...]
) -> Arguments:
    return {"grad_output": m.normal(*leading, *size_out), "self": m.normal(*leading, *size_in)}


def _sliced(pair: Arguments) -> Arguments:
    return {name: tensor[..., ::2, 1::2] for name, tensor in pair.items()}


_flat = made_by(_pair, op=OP2D, dtypes=FLOATING)
_deep = made_by(_pair, op=OP3D, dtypes=FLOATING)
_flat_error, _deep_error = made_by(_pair, op=OP2D), made_by(_pair, op=OP3D)
_plain = _flat_error("plain", (2, 3), (5, 5), (2, 2))
_special = partial(special, name="grad_output")
_bench = made_by(_pair, dtypes=FLOATING[:3])


SAMPLES = Samples(
    cases=(
        _flat("overlap", (2, 3), (11, 13), (7, 8), covers="collisions", variants=(*LAYOUTS, "cpu")),
        _flat("upsampling", (2, 3), (3, 2), (16, 21), covers="collisions"),
        _flat("divisible", (3, 2), (12, 8), (4, 2)),
        _flat("identity", (2, 5), (7, 7), (7, 7)),
        _flat("one_dimensional", (2, 4, 1), (63,), (10,)),
        _flat("unbatched", (5,), (9, 10), (4, 3)),
        _flat("empty_batch", (0, 3), (9, 10), (4, 3), covers="empty"),
        _flat("special", (1,), (7, 6), (3, 5), form=_special),
        _flat("strided", (2, 3), (18, 20), (8, 6), covers="non_contiguous", form=_sliced),
        _flat("last_many", (2, 72), (43, 43), (6, 5), covers="channels_last", form=last),
        _flat("odd", (1, 1), (63, 1000), (10, 63), covers="odd_sizes"),
        _flat("odd_many", (3, 3), (30, 1000), (7, 63), covers="odd_sizes"),
        _deep(
            "overlap", (2, 3), (5, 7, 4), (3, 4, 3), covers="collisions", variants=(*LAYOUTS, "cpu")
        ),
        _deep("upsampling", (1, 2), (2, 3, 4), (5, 5, 5), covers="collisions"),
        _deep("divisible", (1, 2), (4, 6, 8), (2, 3, 4)),
        _deep("unbatched", (3,), (4, 5, 6), (3, 2, 4)),
        _deep("empty_batch", (0, 3), (4, 5, 6), (3, 2, 4), covers="empty"),
        _deep("strided", (2,), (6, 18, 20), (4, 8, 6), covers="non_contiguous", form=_sliced),
        _deep("odd_many", (1, 9), (1, 63, 500), (1, 8, 7), covers="odd_sizes"),
        _deep("odd", (1, 1), (1, 63, 1000), (3, 10, 63), covers="odd_sizes"),
        _deep(
            "resized",
            (2, 3),
            (5, 7, 4),
            (3, 2, 5),
            covers="collisions",
            op=OP3D_OUT,
            variants=("cpu",),
            form=lambda pair: pair | {"grad_input": pair["self"].new_empty(0)},
        ),
    ),
    errors=(
        _flat_error("no_rows_out", (2, 3), (5, 5), (0, 2)),
        _flat_error("no_channels", (2, 0), (5, 5), (2, 2)),
        _flat_error("two_dimensions", (), (5, 5), (2, 2)),
        _flat_error("mixed_dimensions", (2,), (3, 5, 5), (2, 2)),
        _plain.but("mixed_dtypes", grad_output=Tensor.double),
        _plain.but("integers", dtypes=(torch.int64,)),
        _deep_error("no_rows_out", (2, 3), (5, 5, 5), (2, 0, 2)),
        _deep_error("mixed_dimensions", (2,), (3, 5, 5, 5), (2, 2, 2)),
    ),
    bench=(
        _bench("vgg16_head", (64, 512), (7, 7), (7, 7), op=OP2D),
        _bench("alexnet_head_320px", (128, 256), (9, 9), (6, 6), op=OP2D),
        *(_bench(f"pspnet_bin{o}", (4, 2048), (60, 60), (o, o), op=OP2D) for o in (2, 3, 6)),
        *(
            _bench(f"pspnet_bin{o}_last", (4, 2048), (60, 60), (o, o), op=OP2D, form=last)
            for o in (2, 3, 6)
        ),
        _bench("area_half", (8, 64), (224, 224), (112, 112), op=OP2D),
        _bench("waveform_1d", (16, 256, 1), (16000,), (300,), op=OP2D),
        _bench("slowfast_head", (8, 2048), (8, 7, 7), (2, 7, 7), op=OP3D),
        _bench("video_to_7x7", (8, 256), (16, 56, 56), (8, 7, 7), op=OP3D),
        _bench("unet3d_pyramid", (2, 320), (40, 40, 40), (6, 6, 6), op=OP3D),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
)
