"""Samples of the backward of replication padding."""

from __future__ import annotations

from functools import partial

from detmode.table.samples import Sample, Samples
from detmode.table.shared_samples import bench_pad, pad, pads, wrong_pads

OPS = {n: f"aten::replication_pad{n}d_backward" for n in (1, 2, 3)}

_bench = partial(bench_pad, OPS)


def _cases(op: str, n: int) -> tuple[Sample, ...]:
    case, block = partial(pad, op=op), (2, 3, *(5, 4, 6)[:n])
    long = (2, 3, *((3,), (2, 3), (2, 1, 3))[n - 1])
    return (
        *pads(op, n, 4),
        case("wide", block, (7,) * 2 * n, covers="collisions"),
        case("long", long, (101, 70) + (5, 6) * (n - 1)),
        case("no_padding", block, (0,) * 2 * n),
        case("cut_off", block, (-7, 8) * n),
    )


SAMPLES = Samples(
    cases=tuple(sample for n, op in OPS.items() for sample in _cases(op, n)),
    errors=tuple(sample for n, op in OPS.items() for sample in wrong_pads(op, n)),
    bench=(
        _bench("vocoder", (16, 512, 8192), (3, 3)),
        _bench("causal_audio", (8, 64, 65536), (512, 0)),
        _bench("image_to_image", (8, 64, 256, 256), (1, 1, 1, 1)),
        _bench("flow_sizes", (4, 3, 436, 1024), (0, 0, 2, 2)),
        _bench("wide_border", (4, 64, 128, 128), (32, 32, 32, 32)),
        _bench("causal_video", (1, 128, 17, 128, 128), (1, 1, 1, 1, 2, 0)),
        _bench("unet3d", (2, 32, 64, 64, 64), (1, 1, 1, 1, 1, 1)),
    ),
    not_applicable={"negative_dim": "the operators take no dimension"},
)
