"""Samples of the backward of reflection padding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from detmode.table.conditions import COMPLEX, FLOATING
from detmode.table.inputs import LAYOUTS, padded, special
from detmode.table.samples import Sample, Samples, sample

OPS = {n: f"aten::reflection_pad{n}d_backward" for n in (1, 2, 3)}


def _cases(n: int) -> tuple[Sample, ...]:
    case = partial(sample, op=OPS[n], dtypes=FLOATING + COMPLEX)
    block = (2, 3, *(5, 4, 6)[:n])
    pads = (3, 1, 2, 0, 1, 4)[: 2 * n]
    odd = (1, 3, *((1001,), (63, 101), (7, 9, 65))[n - 1])
    variants = (*(LAYOUTS if n > 1 else LAYOUTS[:1]), "cpu")
    return (
        case("both_sides", lambda m: padded(m, block, pads), "collisions", variants=variants),
        case("wide", lambda m: padded(m, (2, 3, *(6,) * n), (5,) * 2 * n), "collisions"),
        case("single", lambda m: padded(m, (2, 3, *(1,) * n), (0,) * 2 * n)),
        case("cropped", lambda m: padded(m, block, (-1, -2) * n)),
        case("moved", lambda m: padded(m, block, (3, -2, -1, 3, -2, 2)[: 2 * n])),
        case("unbatched", lambda m: padded(m, block[1:], pads)),
        case("empty_batch", lambda m: padded(m, (0, *block[1:]), pads), "empty"),
        case("special", lambda m: special(padded(m, block, (3, 2) * n), "grad_output", 4)),
        case("odd", lambda m: padded(m, odd, pads), "odd_sizes"),
    )


def _errors(n: int) -> tuple[Sample, ...]:
    right = sample("right", lambda m: padded(m, (2, 3, *(5, 4, 6)[:n]), (2, 1) * n), op=OPS[n])
    return (
        right.but("wrong_shape", padding=[2, 2] * n),
        right.but("integers", dtypes=(torch.int64,)),
        right.but("mixed_dtypes", self=Tensor.double),
    )


def _bench(name: str, shape: tuple[int, ...], padding: tuple[int, ...]) -> Sample:
    op = OPS[len(padding) // 2]
    return sample(name, lambda m: padded(m, shape, padding), op=op, dtypes=FLOATING[:3])


def _composed(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
    """Along each dimension the border is turned round and added beside the edge."""
    grad = grad_output.clone()
    for number, (before, after) in enumerate(zip(padding[::2], padding[1::2])):
        dim = grad.dim() - 1 - number
        size = self.shape[dim]
        kept = grad.narrow(dim, before, size).clone()
        kept.narrow(dim, 1, before).add_(grad.narrow(dim, 0, before).flip(dim))
        behind = grad.narrow(dim, before + size, after).flip(dim)
        kept.narrow(dim, size - 1 - after, after).add_(behind)
        grad = kept
    return grad


SAMPLES = Samples(
    cases=tuple(each for n in OPS for each in _cases(n)),
    errors=(
        *_errors(1),
        *_errors(3),
        sample("padding_as_wide", lambda m: padded(m, (2, 3, 5), (5, 1)), op=OPS[1]),
        _errors(3)[0].but("much_padding", padding=[2, 1, 2, 1, 2, 1, 0]),
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
    compositions=dict.fromkeys((OPS[1], OPS[3]), _composed),
)
