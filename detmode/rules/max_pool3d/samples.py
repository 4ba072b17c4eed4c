"""Samples of the backward of max pooling."""

from __future__ import annotations

from functools import partial

import torch

from detmode.table.conditions import FLOATING
from detmode.table.inputs import LAYOUTS, Arguments, cut, last
from detmode.table.samples import Maker, Samples, made_by, sample
from detmode.table.shared_samples import special_gradient

OP2D = "aten::max_pool2d_with_indices_backward"
OP = "aten::max_pool3d_with_indices_backward"
EVERYWHERE = (*LAYOUTS, "cpu", "mps")


def _call(
    m: Maker,
    shape: tuple[int, ...],
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (0,),
    dilation: tuple[int, ...] = (1,),
    ceil_mode: bool = False,
) -> Arguments:
    # Small integers: windows have ties, and some elements are chosen by many windows.
    self = m.integers(-3, 4, *shape, dtype=m.dtype)
    window = {
        "kernel_size": list(kernel_size),
        "stride": list(stride),
        "padding": list(padding),
        "dilation": list(dilation),
        "ceil_mode": ceil_mode,
    }
    pool = torch.ops.aten.max_pool3d_with_indices
    indices = pool(self.cpu().double(), **window)[1].to(m.device)
    return {"grad_output": m.normal(*indices.shape), "self": self, **window, "indices": indices}


def _planar(m: Maker) -> Arguments:
    call = _call(m, (2, 3, 1, 5, 6), (1, 3, 3), (1,), (0, 1, 1))
    for name in ("grad_output", "self", "indices"):
        call[name] = call[name].squeeze(2)
    sizes = {"kernel_size": [3, 3], "padding": [1, 1], "stride": [1, 1], "dilation": [1, 1]}
    return {**call, **sizes}


_case = made_by(_call, op=OP, dtypes=FLOATING)
_bench = made_by(_call, op=OP, dtypes=FLOATING[:3])
_plain = _case("plain", (2, 3, 6, 6, 6), (2,), dtypes=FLOATING[2:3])
_sums, _odd = ({"covers": item} for item in ("collisions", "odd_sizes"))
_stem = (1, 3, 3), (1, 2, 2)
_many = {"covers": "channels_last", "form": last}

SAMPLES = Samples(
    cases=(
        _case("overlap", (2, 3, 6, 7, 8), (3,), (2,), (1,), **_sums, variants=EVERYWHERE),
        _case("stride_1", (1, 2, 5, 6, 7), (3,), (1,), (1,), **_sums),
        _case("apart", (2, 2, 6, 7, 9), (2,), (3,)),
        _case("default_stride", (2, 2, 6, 7, 9), (2, 3, 2)),
        _case("unlike_axes", (2, 3, 4, 9, 7), (1, 4, 3), (1, 3, 2), (0, 2, 1)),
        _case("dilated", (1, 2, 7, 8, 9), (3,), (1,), (1,), (2,), **_sums),
        _case("dilated_unlike", (1, 2, 9, 14, 13), (2, 3, 3), (3, 4, 2), (1, 0, 1), (2, 6, 3)),
        _case("ceil", (1, 2, 6, 7, 8), (3,), (2,), (1,), (1,), True),
        _case("unbatched", (3, 6, 7, 8), (3,), (2,), variants=LAYOUTS[:1]),
        _case("empty_batch", (0, 3, 6, 7, 8), (3,), (2,), covers="empty"),
        _case("special", (1, 3, 9, 9), (3,), (1,), (1,), form=partial(special_gradient, step=8)),
        _case("last_many", (1, 18, 1, 121, 122), (1, 3, 3), (2,), **_many),
        _case("odd", (1, 1, 1, 63, 1000), (1, 5, 7), (1, 3, 4), **_odd),
        _case("odd_many", (1, 17, 1, 17, 991), (1, 3, 4), (2,), **_odd),
        sample("overlapping_windows", _planar, op=OP2D, variants=("mps",)),
    ),
    errors=(
        _plain.but("zero_stride", stride=[0]),
        _plain.but("zero_dilation", dilation=[0]),
        _plain.but("two_kernel_sizes", kernel_size=[2, 2]),
        _plain.but("two_strides", stride=[2, 2]),
        _plain.but("two_paddings", padding=[0, 0]),
        _plain.but("two_dilations", dilation=[1, 1]),
        _plain.but("wide_padding", padding=[2]),
        _plain.but("no_channels", self=cut(2, 0)),
        _plain.but("no_rows", self=cut(2, 3, 6, 0)),
        _plain.but("fewer_channels_out", grad_output=cut(2, 2)),
        _plain.but("fewer_indices", indices=cut(2, 3, 2)),
        _plain.but("narrow_indices", indices=torch.Tensor.int),
        _plain.but("mixed_dtypes", grad_output=torch.Tensor.double),
        _plain.but("integers", dtypes=(torch.int64,)),
    ),
    bench=(
        _bench("unet3d_down", (2, 32, 128, 128, 128), (2,), (2,)),
        _bench("resnet3d_stem", (8, 64, 8, 112, 112), (3,), (2,), (1,)),
        _bench("slowfast_stem", (8, 64, 8, 112, 112), *_stem, (0, 1, 1)),
        _bench("i3d_branch", (8, 192, 16, 28, 28), (3,), (1,), (1,)),
        _bench("i3d_stem_last", (8, 64, 16, 112, 112), *_stem, (0, 1, 1), (1,), True, form=last),
    ),
    not_applicable={"negative_dim": "the operator takes no dimension"},
)
