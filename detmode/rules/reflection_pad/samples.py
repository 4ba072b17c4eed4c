"""Samples of the backward of reflection padding."""

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
    odd = ((1001,), (63, 101), (7, 9, 65))[n - 1]
    samples = [
        ("both_sides", partial(padded, shape=(2, 3, *sizes), padding=pads), ("collisions",)),
        ("wide", partial(padded, shape=(2, 3, *(6,) * n), padding=(5,) * 2 * n), ("collisions",)),
        ("single", partial(padded, shape=(2, 3, *(1,) * n), padding=(0,) * 2 * n), ()),
        ("cropped", partial(padded, shape=(2, 3, *sizes), padding=(-1, -2) * n), ()),
        (
            "shifted",
            partial(padded, shape=(2, 3, *sizes), padding=(3, -2, -1, 3, -2, 2)[: 2 * n]),
            (),
        ),
        ("unbatched", partial(padded, shape=(3, *sizes), padding=pads), ()),
        ("empty_batch", partial(padded, shape=(0, 3, *sizes), padding=pads), ("empty",)),
        ("special_values", partial(special, n=n), ()),
        ("strided", partial(strided, shape=(2, 3, *sizes), padding=pads), ("non_contiguous",)),
        ("odd", partial(padded, shape=(1, 3, *odd), padding=pads), ("odd_sizes",)),
    ]
    if n > 1:
        last = partial(padded, shape=(2, 3, *sizes), padding=pads, last=True)
        samples.append(("last", last, ("channels_last",)))
    op = f"aten::reflection_pad{n}d_backward"
    return (
        *(Sample(name=a, op=op, make=b, dtypes=DTYPES, covers=c) for a, b, c in samples),
        Sample(name="host", op=op, make=samples[0][1], device="cpu"),
    )


def _bench(name: str, shape: tuple[int, ...], padding: tuple[int, ...]) -> Sample:
    op = f"aten::reflection_pad{len(padding) // 2}d_backward"
    return Sample(name=name, op=op, make=lambda m: padded(m, shape, padding), dtypes=FLOATING[:3])


SAMPLES = Samples(
    cases=tuple(sample for n in (1, 2, 3) for sample in _samples(n)),
    errors=(
        *errors("reflection_pad", 1),
        *errors("reflection_pad", 3),
        Sample(
            name="padding_as_wide",
            op="aten::reflection_pad1d_backward",
            make=lambda m: padded(m, (2, 3, 5), (5, 1)),
        ),
        much_padding("reflection_pad", 3),
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
