"""Samples of the backward of adaptive max pooling."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from detmode.table.compositions import max_pool_backward
from detmode.table.conditions import FLOATING
from detmode.table.inputs import LAYOUTS, Arguments, cut, last, special
from detmode.table.samples import Maker, Sample, Samples, sample

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


def _last3d(m: Maker) -> Arguments:
    # The forward gives contiguous indices, and ATen's backward takes them as such.
    call = _call(m, (2, 5), (4, 5, 6), (3, 2, 4))
    return last(call) | {"indices": call["indices"]}


_flat, _deep = partial(sample, op=OP2D, dtypes=FLOATING), partial(sample, op=OP3D, dtypes=FLOATING)
_plain2 = sample("plain", lambda m: _call(m, (2, 3), (5, 5), (2, 2)), op=OP2D)
_plain3 = sample("plain", lambda m: _call(m, (2, 3), (5, 5, 5), (2, 2, 2)), op=OP3D)
_integers = (torch.int64,)


def _first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[0, 0]


def _bench(name: str, op: str, *shape: Any, stored: Any = dict) -> Sample:
    return sample(name, lambda m: stored(_call(m, *shape)), op=op, dtypes=FLOATING[:3])


SAMPLES = Samples(
    cases=(
        _flat(
            "overlap",
            lambda m: _call(m, (2, 3), (11, 13), (7, 8)),
            "collisions",
            variants=(*LAYOUTS, "cpu", "mps"),
        ),
        _flat("upsampling", lambda m: _call(m, (2, 3), (3, 2), (16, 21)), "collisions"),
        _flat("divisible", lambda m: _call(m, (3, 2), (12, 8), (4, 2))),
        _flat("identity", lambda m: _call(m, (2, 5), (7, 7), (7, 7))),
        _flat("whole", lambda m: _call(m, (2, 5), (7, 6), (1, 1))),
        _flat("one_dimensional", lambda m: _call(m, (2, 4), (1, 63), (1, 10))),
        _flat("unbatched", lambda m: _call(m, (5,), (9, 10), (4, 3))),
        _flat("empty_batch", lambda m: _call(m, (0, 3), (9, 10), (4, 3)), "empty"),
        _flat("special", lambda m: special(_call(m, (1,), (7, 6), (3, 5)), "grad_output")),
        _flat("last_many", lambda m: last(_call(m, (2, 18), (89, 91), (7, 6))), "channels_last"),
        _flat("odd", lambda m: _call(m, (1, 1), (63, 1000), (10, 63)), "odd_sizes"),
        _flat("odd_many", lambda m: _call(m, (3, 7), (13, 1000), (7, 63)), "odd_sizes"),
        _deep("overlap", lambda m: _call(m, (2, 3), (5, 7, 4), (3, 4, 3)), "collisions"),
        _deep("upsampling", lambda m: _call(m, (1, 2), (2, 3, 4), (5, 5, 5)), "collisions"),
        _deep("last", _last3d, "channels_last"),
        _deep("even_windows", lambda m: _call(m, (1, 2), (4, 6, 8), (2, 3, 4))),
        _deep("unbatched", lambda m: _call(m, (3,), (4, 5, 6), (3, 2, 4))),
        _deep("empty_batch", lambda m: _call(m, (0, 3), (4, 5, 6), (3, 2, 4)), "empty"),
        _deep("odd_many", lambda m: _call(m, (1, 17), (1, 31, 500), (1, 8, 7)), "odd_sizes"),
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
        _bench("spp_bin6", OP2D, (16, 256), (13, 13), (6, 6)),
        _bench("spp_bin6_last", OP2D, (16, 256), (13, 13), (6, 6), stored=last),
        _bench("roi_7x7", OP2D, (256, 256), (25, 34), (7, 7)),
        _bench("cbam_global", OP2D, (32, 256), (56, 56), (1, 1)),
        _bench("waveform_1d", OP2D, (16, 256), (1, 16000), (1, 300)),
        _bench("video_to_7x7", OP3D, (8, 256), (16, 56, 56), (7, 7, 7)),
        _bench("unet3d_pyramid", OP3D, (2, 320), (40, 40, 40), (6, 6, 6)),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
    compositions={
        OP2D: partial(max_pool_backward, dims=2),
        OP3D: partial(max_pool_backward, dims=3),
    },
)
