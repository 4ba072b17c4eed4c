"""Samples of the backward of reflection padding."""

from __future__ import annotations

from functools import partial

import torch

from detmode.table.samples import Samples
from detmode.table.shared_samples import bench_pad, pad, pads, wrong_pads

OPS = {n: f"aten::reflection_pad{n}d_backward" for n in (1, 2, 3)}

_bench = partial(bench_pad, OPS)


SAMPLES = Samples(
    cases=(
        *(sample for n, op in OPS.items() for sample in pads(op, n, 3)),
        *(
            pad("wide", (2, 3, *(6,) * n), (5,) * 2 * n, covers="collisions", op=OPS[n])
            for n in OPS
        ),
        *(pad("single", (2, 3, *(1,) * n), (0,) * 2 * n, op=OPS[n]) for n in OPS),
    ),
    errors=(
        *wrong_pads(OPS[1], 1)[:3],
        *wrong_pads(OPS[3], 3),
        pad("padding_as_wide", (2, 3, 5), (5, 1), op=OPS[1], dtypes=(torch.float32,)),
    ),
    bench=(
        _bench("spectrogram", (16, 1, 220500), (512, 512)),
        _bench("vocoder", (16, 512, 8192), (3, 3)),
        _bench("codec", (8, 64, 65536), (6, 0)),
        _bench("video_autoencoder", (1, 128, 17, 128, 128), (1, 1, 1, 1, 1, 1)),
        _bench("unet3d", (2, 32, 64, 64, 64), (1, 1, 1, 1, 1, 1)),
        _bench("volume_patches", (2, 1, 96, 96, 96), (16, 16, 16, 16, 16, 16)),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
)
