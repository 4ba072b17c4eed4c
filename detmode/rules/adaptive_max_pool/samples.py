"""Samples of the backward of adaptive max pooling."""

from __future__ import annotations

from functools import partial

import torch

from detmode.table.conditions import FLOATING
from detmode.table.inputs import LAYOUTS, Arguments, cut, last, special
from detmode.table.samples import Maker, Samples, made_by

OP2D = "aten::adaptive_max_pool2d_backward"
OP3D = "aten::adaptive_max_pool3d_backward"


def _call(
    m: Maker, leading: tuple[int, ...], size_in: tuple[int, ...], size_out: tuple[int, ...]
) -> Arguments:
    # Small integers: windows have ties, and some elements are chosen by many windows.
    self = m.integers(-3, 4, *leading, *size_in, dtype=m.dtype)
    if self.numel():
        pool = getattr(torch.ops.aten, f"adaptive_max_pool{len(size_in)}d")
        indices = pool(self.cpu().double(), size_out)[1].to(m.device)
    else:
        indices = m.integers(0, 1, *leading, *size_out)
    return {"grad_output": m.normal(*leading, *size_out), "self": self, "indices": indices}


def _last3d(call: Arguments) -> Arguments:
    # The forward gives contiguous indices, and ATen's backward takes them as such.
    return last(call) | {"indices": call["indices"]}


_flat = made_by(_call, op=OP2D, dtypes=FLOATING)
_deep = made_by(_call, op=OP3D, dtypes=FLOATING)
_plain2 = made_by(_call, op=OP2D)("plain", (2, 3), (5, 5), (2, 2))
_plain3 = made_by(_call, op=OP3D)("plain", (2, 3), (5, 5, 5), (2, 2, 2))
_bench = made_by(_call, dtypes=FLOATING[:3])
_special = partial(special, name="grad_output")
_integers = (torch.int64,)


def _first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[0, 0]


SAMPLES = Samples(
    cases=(
        _flat(
            "overlap",
            (2, 3),
            (11, 13),
            (7, 8),
            covers="collisions",
            variants=(*LAYOUTS, "cpu", "mps"),
        ),
        _flat("upsampling", (2, 3), (3, 2), (16, 21), covers="collisions"),
        _flat("divisible", (3, 2), (12, 8), (4, 2)),
        _flat("identity", (2, 5), (7, 7), (7, 7)),
        _flat("whole", (2, 5), (7, 6), (1, 1)),
        _flat("one_dimensional", (2, 4), (1, 63), (1, 10)),
        _flat("unbatched", (5,), (9, 10), (4, 3)),
        _flat("empty_batch", (0, 3), (9, 10), (4, 3), covers="empty"),
        _flat("special", (1,), (7, 6), (3, 5), form=_special),
        _flat("last_many", (2, 18), (89, 91), (7, 6), covers="channels_last", form=last),
        _flat("odd", (1, 1), (63, 1000), (10, 63), covers="odd_sizes"),
        _flat("odd_many", (3, 7), (13, 1000), (7, 63), covers="odd_sizes"),
        _deep("overlap", (2, 3), (5, 7, 4), (3, 4, 3), covers="collisions"),
        _deep("upsampling", (1, 2), (2, 3, 4), (5, 5, 5), covers="collisions"),
        _deep("last", (2, 5), (4, 5, 6), (3, 2, 4), covers="channels_last", form=_last3d),
        _deep("even_windows", (1, 2), (4, 6, 8), (2, 3, 4)),
        _deep("unbatched", (3,), (4, 5, 6), (3, 2, 4)),
        _deep("empty_batch", (0, 3), (4, 5, 6), (3, 2, 4), covers="empty"),
        _deep("odd_many", (1, 17), (1, 31, 500), (1, 8, 7), covers="odd_sizes"),
    ),
    errors=(
        _plain2.but("no_rows_out", grad_output=cut(2, 3, 0)),
        _plain2.but("two_dimensions", grad_output=_first, self=_first, indices=_first),
        _plain2.but("mixed_dtypes", grad_output=torch.Tensor.double),
        _plain2.but("integers", dtypes=_integers),
        _plain3.but("no_rows_out", grad_output=cut(2, 3, 2, 0)),
        _plain3.but("integers", dtypes=_integers),
    ),
    bench=(
        _bench("spp_bin6", (16, 256), (13, 13), (6, 6), op=OP2D),
        _bench("spp_bin6_last", (16, 256), (13, 13), (6, 6), form=last, op=OP2D),
        _bench("roi_7x7", (256, 256), (25, 34), (7, 7), op=OP2D),
        _bench("cbam_global", (32, 256), (56, 56), (1, 1), op=OP2D),
        _bench("waveform_1d", (16, 256), (1, 16000), (1, 300), op=OP2D),
        _bench("video_to_7x7", (8, 256), (16, 56, 56), (7, 7, 7), op=OP3D),
        _bench("unet3d_pyramid", (2, 320), (40, 40, 40), (6, 6, 6), op=OP3D),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
)
