"""Samples of 3-D average pooling's backward."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from detmode.table.conditions import FLOATING
from detmode.table.inputs import LAYOUTS, Arguments, cut, special
from detmode.table.samples import Maker, Samples, made_by

OP = "aten::avg_pool3d_backward"


def _call(
    m: Maker,
    shape: tuple[int, ...],
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Arguments:
    meta = torch.empty(shape, device="meta")
    pooled = F.avg_pool3d(meta, kernel_size, stride or None, padding, ceil_mode)
    return {
        "grad_output": m.normal(*pooled.shape),
        "self": m.normal(*shape),
        "kernel_size": list(kernel_size),
        "stride": list(stride),
        "padding": list(padding),
        "ceil_mode": ceil_mode,
        "count_include_pad": count_include_pad,
        "divisor_override": divisor_override,
    }


_case = made_by(_call, op=OP, dtypes=FLOATING)
_bench = made_by(_call, op=OP, dtypes=FLOATING[:3])
_plain = made_by(_call, op=OP)("plain", (2, 3, 6, 6, 6), (2,))
_special = partial(special, name="grad_output", step=8)

SAMPLES = Samples(
    cases=(
        _case(
            "overlap", (2, 3, 6, 7, 8), (3,), (2,), covers="collisions", variants=(*LAYOUTS, "mps")
        ),
        _case("stride_1", (1, 2, 5, 6, 7), (3,), (1,), covers="collisions"),
        _case("same_size", (1, 2, 5, 6, 7), (3,), (1,), (1,), covers="collisions"),
        _case("apart", (2, 2, 6, 7, 9), (2,), (3,)),
        _case("default_stride", (2, 2, 6, 7, 9), (2, 3, 2)),
        _case("unlike_axes", (2, 3, 4, 9, 7), (1, 4, 3), (1, 3, 2), (0, 2, 1)),
        _case("ceil", (1, 2, 6, 7, 8), (3,), (2,), (1,), True, covers="collisions"),
        _case("ceil_no_pad", (1, 2, 6, 7, 8), (3,), (2,), (1,), True, False),
        _case("no_pad", (1, 2, 6, 7, 8), (3,), (2,), (1,), False, False),
        _case("divisor", (1, 2, 6, 7, 8), (3,), (2,), (1,), True, False, -5),
        _case("unbatched", (3, 6, 7, 8), (3,), (2,)),
        _case("empty_batch", (0, 3, 6, 7, 8), (3,), (2,), covers="empty"),
        _case("special", (1, 3, 9, 9), (3,), (1,), (1,), form=_special),
        _case(
            "special_divisor",
            (1, 3, 9, 9),
            (3,),
            (1,),
            (1,),
            count_include_pad=False,
            divisor_override=27,
            form=_special,
        ),
        _case("odd", (1, 1, 1, 63, 1000), (1, 5, 7), (1, 3, 4), covers="odd_sizes"),
        _case("odd_many", (1, 5, 1, 63, 1000), (1, 3, 4), (1, 2, 3), covers="odd_sizes"),
    ),
    errors=(
        _plain.but("zero_divisor", divisor_override=0),
        _plain.but("zero_stride", stride=[0]),
        _plain.but("two_kernel_sizes", kernel_size=[2, 2]),
        _plain.but("two_strides", stride=[2, 2]),
        _plain.but("two_paddings", padding=[0, 0]),
        _plain.but("wide_padding", padding=[2]),
        _plain.but("wide_kernel", kernel_size=[7]),
        _plain.but("no_channels", self=cut(2, 0)),
        _plain.but("no_rows", self=cut(2, 3, 6, 0)),
        _plain.but("short_output", grad_output=cut(2, 3, 2)),
        _plain.but("fewer_channels_out", grad_output=cut(2, 2)),
        _plain.but("mixed_dtypes", grad_output=Tensor.double),
    ),
    bench=(
        _bench("unet3d_down", (2, 32, 128, 128, 128), (2,), (2,)),
        _bench("unet3d_overlap", (2, 32, 128, 128, 128), (3,), (2,), (1,)),
        _bench("slowfast_head", (8, 2048, 8, 7, 7), (8, 7, 7), (1,)),
        _bench("i3d_head", (8, 1024, 8, 7, 7), (2, 7, 7), (1,)),
        _bench("densenet3d_transition", (8, 256, 8, 28, 28), (2,), (2,)),
        _bench("inception3d_branch", (8, 192, 16, 28, 28), (3,), (1,), (1,)),
        _bench("same_exclude_pad", (8, 64, 16, 56, 56), (3,), (1,), (1,), False, False),
        _bench("video_spatial", (8, 64, 16, 112, 112), (1, 3, 3), (1, 2, 2), (0, 1, 1)),
    ),
    not_applicable={"negative_dim": "the operator takes no dimension"},
)
