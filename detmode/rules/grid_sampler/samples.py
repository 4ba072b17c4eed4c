"""Samples of the backward of grid sampling."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from detmode.rules.grid_sampler import reference
from detmode.rules.grid_sampler.arguments import BORDER, REFLECTION, ZEROS, backward, cudnn, exact
from detmode.rules.grid_sampler.sampling import BICUBIC, BILINEAR, NEAREST
from detmode.table.conditions import FLOATING
from detmode.table.inputs import cut, last, strided
from detmode.table.samples import Samples, made_by

OPS = {2: "aten::grid_sampler_2d_backward", 3: "aten::grid_sampler_3d_backward"}
CUDNN = "aten::cudnn_grid_sampler_backward"
CUDNN_DTYPES = (torch.float16, torch.float32, torch.float64)


_flat = made_by(backward, op=OPS[2], dtypes=FLOATING)
_deep = made_by(backward, op=OPS[3], dtypes=FLOATING)
_exact = made_by(exact, op=OPS[2], dtypes=FLOATING)
_CASES = (
    _flat("magnified", (2, 3), (4, 2), (13, 11), covers="collisions"),
    _flat("corners", (2, 3), (3, 5), (9, 7), 0, 0, True, covers="collisions"),
    _flat("border", (2, 2), (4, 2), (9, 7), 0, BORDER, covers="collisions"),
    _flat("border_corners", (1, 2), (5, 3), (7, 7), 0, BORDER, True),
    _flat("reflected", (1, 2), (4, 2), (7, 7), 0, REFLECTION, reach=9),
    _flat("reflected_corners", (1, 2), (5, 3), (7, 7), 0, 2, True),
    _flat("nearest", (2, 3), (4, 4), (9, 7), NEAREST, covers="collisions"),
    _flat("nearest_border", (1, 3), (5, 5), (5, 7), NEAREST, BORDER, True),
    _exact("nearest_exact", NEAREST, ZEROS, True),
    _flat("bicubic", (2, 2), (4, 8), (5, 7), BICUBIC, covers="collisions"),
    _flat("bicubic_border", (1, 2), (3, 2), (5, 5), BICUBIC, BORDER, True),
    _flat("bicubic_reflected", (1, 2), (4, 2), (5, 5), BICUBIC, 2),
    _exact("exact", BILINEAR, ZEROS, True),
    _exact("exact_border", BILINEAR, BORDER, True),
    _exact("exact_reflected", BILINEAR, REFLECTION, True),
    _flat("one_pixel", (1, 2), (1, 1), (3, 63), 0, 2, True, covers="odd_sizes"),
    _flat("odd", (1, 1), (1, 65), (1, 1000), 0, 0, True, covers="odd_sizes"),
    _flat("many_channels", (1, 67), (2, 4), (5, 7), covers="collisions"),
    # Planes that a block writes, with sums in a table.
    _flat("few_taps", (64, 1), (31, 35), (3, 5), covers="collisions"),
    _flat("grid_only", (1, 2), (4, 4), (5, 5), output_mask=[False, True]),
    _flat("empty_batch", (0, 3), (4, 4), (5, 5), covers="empty"),
    _flat("empty_output", (2, 3), (4, 4), (5, 0), covers="empty"),
    _flat("no_channels", (2, 0), (4, 4), (5, 3), covers="empty"),
    _flat("strided", (2, 3), (4, 8), (5, 7), covers="non_contiguous", form=strided),
    _flat("last", (2, 34), (4, 2), (5, 3), covers="channels_last", form=last),
    _deep("magnified", (2, 2), (2, 4, 2), (5, 4, 3), covers="collisions"),
    _deep("corners", (1, 2), (3, 2, 5), (4, 3, 3), 0, ZEROS, True),
    _deep("border", (1, 2), (1, 4, 2), (4, 3, 3), 0, BORDER, covers="collisions"),
    _deep("reflected", (1, 2), (1, 4, 2), (4, 3, 3), 0, 2, reach=5),
    _deep("nearest", (1, 2), (2, 4, 2), (5, 4, 3), NEAREST, covers="collisions"),
    _deep("grid_only", (1, 2), (1, 2, 4), (3, 2, 2), output_mask=[False] * 2),
    _deep("empty_output", (2, 3), (4, 4, 4), (5, 0, 2), covers="empty"),
    _deep("strided", (1, 2), (1, 2, 4), (2, 3, 4), covers="non_contiguous", form=strided),
    _deep("many_channels", (5, 13), (3, 2, 2), (2, 3, 2), covers="collisions"),
    _deep("last", (1, 35), (2, 4, 2), (2, 3, 2), covers="channels_last", form=last),
)


_cudnn = made_by(cudnn, op=CUDNN, dtypes=CUDNN_DTYPES)
_bench = made_by(backward, op=OPS[2], dtypes=FLOATING[:3])
_plain2 = made_by(backward, op=OPS[2])("flat", (2, 3), (4, 4), (5, 5))
_plain3 = made_by(backward, op=OPS[3])("deep", (2, 3), (4, 4, 4), (5, 5, 5))

SAMPLES = Samples(
    cases=(
        *_CASES,
        replace(_plain2, device="cpu"),
        replace(_plain2, device="mps"),
        replace(_plain3, device="cpu"),
        replace(_plain3, device="mps"),
        _cudnn("magnified", (2, 3), (3, 5), (13, 11), covers="collisions"),
        _cudnn("strided", (2, 3), (3, 5), (6, 5), form=strided),
        _cudnn("empty_batch", (0, 3), (4, 5), (6, 5)),
        made_by(cudnn, op=CUDNN, device="cpu")("host", (2, 3), (3, 5), (6, 5)),
    ),
    errors=(
        _plain2.but("other_batch", grid=lambda grid: grid[:1]),
        _plain2.but("three_coordinates", grid=torch.zeros(2, 5, 5, 3, device="cpu")),
        _plain2.but("no_pixels", input=cut(2, 3, 0)),
        _plain2.but("volume", input=torch.ones(2, 3, 4, 4, 4, device="cpu")),
        _plain2.but("wide_input", input=Tensor.double),
        _plain2.but("wide_grid", grid=Tensor.double),
        _plain2.but("wide_gradient", grad_output=Tensor.double),
        _plain2.but("integers", dtypes=(torch.int64,)),
        _plain3.but("two_coordinates", grid=torch.zeros(2, 5, 5, 5, 2, device="cpu")),
        _plain3.but("image", input=torch.ones(2, 3, 4, 4, device="cpu")),
        _plain3.but("integers", dtypes=(torch.int64,)),
    ),
    bench=(
        _bench("spatial_transformer", (64, 3), (224, 224), (224, 224), smooth=True),
        _bench("raft_lookup", (7040, 1), (55, 128), (9, 9), 0, ZEROS, True),
        # A batch of six, in training: the four levels that each look-up reads.
        *(
            _bench(f"raft_training_level_{level}", (17_112, 1), size, (9, 9), 0, ZEROS, True)
            for level, size in enumerate(((46, 62), (23, 31), (11, 15), (5, 7)), 1)
        ),
        _bench("flow_warp", (8, 64), (96, 128), (96, 128), 0, BORDER, True, smooth=True),
        _bench("deformable_attention", (16, 32), (100, 134), (13_294, 4)),
        *(
            _bench(f"deformable_attention_level_{level}", (16, 32), size, (13_294, 4))
            for level, size in enumerate(((50, 67), (25, 34), (13, 17)), 2)
        ),
        _bench("bicubic_image", (4, 3), (512, 512), (512, 512), BICUBIC, REFLECTION, smooth=True),
        _bench(
            "registration", (1, 1), *[(160, 192, 224)] * 2, 0, BORDER, True, smooth=True, op=OPS[3]
        ),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
    references={**dict.fromkeys(OPS.values(), reference.backward), CUDNN: reference.cudnn_backward},
    unlike_cpu=dict.fromkeys(
        (case.name for case in _CASES if "nearest" not in case.name or "border" in case.name),
        "for NaN and infinite positions the CPU kernels weigh what lies outside, or read beyond it",
    ),
    unlike_magnitudes=dict.fromkeys(
        (*OPS.values(), CUDNN), "positions choose the addends, and weights have both signs"
    ),
)
