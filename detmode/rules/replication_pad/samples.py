"""Samples of the backward of replication padding."""

from __future__ import annotations

from functools import partial

from detmode.rules.replication_pad.arguments import (
    SIZES,
    errors,
    much_padding,
    padded,
    special,
    strided,
)
from detmode.table.conditions import COMPLEX, FLOATING
from detmode.table.samples import Sample, Samples

DTYPES = FLOATING + COMPLEX


def _samples(n: int) -> tuple[Sample, ...]:
    sizes, pads = SIZES[:n], (3, 1, 2, 0, 1, 4)[: 2 * n]
    long = ((3,), (2, 3), (2, 1, 3))[n - 1]
    odd = ((1001,), (63, 101), (7, 9, 65))[n - 1]
    samples = [
        ("both_sides", partial(padded, shape=(2, 3, *sizes), padding=pads), ("collisions",)),
        ("wide", partial(padded, shape=(2, 3, *sizes), padding=(7,) * 2 * n), ("collisions",)),
        ("long", partial(padded, shape=(2, 3, *long), padding=(101, 70) + (5, 6) * (n - 1)), ()),
        ("no_padding", partial(padded, shape=(2, 3, *sizes), padding=(0,) * 2 * n), ()),
        ("cropped", partial(padded, shape=(2, 3, *sizes), padding=(-1, -2) * n), ()),
        (
            "shifted",
            partial(padded, shape=(2, 3, *sizes), padding=(4, -2, -1, 3, -2, 2)[: 2 * n]),
            (),
        ),
        ("cut_off", partial(padded, shape=(2, 3, *sizes), padding=(-7, 8) * n), ()),
        ("unbatched", partial(padded, shape=(3, *sizes), padding=pads), ()),
        ("empty_batch", partial(padded, shape=(0, 3, *sizes), padding=pads), ("empty",)),
        ("special_values", partial(special, n=n), ()),
        ("strided", partial(strided, shape=(2, 3, *sizes), padding=pads), ("non_contiguous",)),
        ("odd", partial(padded, shape=(1, 3, *odd), padding=pads), ("odd_sizes",)),
    ]
    if n > 1:
        last = partial(padded, shape=(2, 3, *sizes), padding=pads, last=True)
        samples.append(("last", last, ("channels_last",)))
    op = f"aten::replication_pad{n}d_backward"
    return (
        *(Sample(name=a, op=op, make=b, dtypes=DTYPES, covers=c) for a, b, c in samples),
        Sample(name="host", op=op, make=samples[0][1], device="cpu"),
    )


def _bench(name: str, shape: tuple[int, ...], padding: tuple[int, ...]) -> Sample:
    op = f"aten::replication_pad{len(padding) // 2}d_backward"
    return Sample(name=name, op=op, make=lambda m: padded(m, shape, padding), dtypes=FLOATING[:3])


SAMPLES = Samples(
    cases=tuple(sample for n in (1, 2, 3) for sample in _samples(n)),
    errors=(
        *(sample for n in (1, 2, 3) for sample in errors("replication_pad", n)),
        *(much_padding("replication_pad", n) for n in (1, 2, 3)),
    ),
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
