"""Samples that families share: of the backward of resizes and of paddings, and of scatters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from detmode.table.conditions import COMPLEX, FLOATING
from detmode.table.inputs import LAYOUTS, padded, resized, scattered, scattered_batches, special
from detmode.table.samples import Sample, made_by

special_gradient = partial(special, name="grad_output")


resize = made_by(resized, dtypes=FLOATING)
bench_resize = made_by(resized, dtypes=(torch.float16, torch.float32))
pad = made_by(padded, dtypes=FLOATING + COMPLEX)


def wrong_resizes(op: str) -> tuple[Sample, ...]:
    """Arguments that an operator on images refuses."""
    right = resize("right", (2, 3), (4, 5), (8, 10), op=op, dtypes=FLOATING[2:3])
    return (
        right.but("wrong_grad_shape", input_size=[2, 3, 4]),
        right.but("wrong_channels", input_size=[2, 4, 4, 5]),
        right.but("wrong_output_size", output_size=[8, 11]),
        right.but("no_input", input_size=[2, 3, 0, 5]),
        right.but("integers", align_corners=True, dtypes=(torch.int64,)),
    )


def pads(op: str, n: int, moved: int) -> tuple[Sample, ...]:
    """Paddings of ``n`` dimensions, one of them by ``moved`` at its beginning."""
    case, block = partial(pad, op=op), (2, 3, *(5, 4, 6)[:n])
    around = (3, 1, 2, 0, 1, 4)[: 2 * n]
    odd = (1, 3, *((1001,), (63, 101), (7, 9, 65))[n - 1])
    variants = (*(LAYOUTS if n > 1 else LAYOUTS[:1]), "cpu")
    return (
        case("both_sides", block, around, covers="collisions", variants=variants),
        case("cropped", block, (-1, -2) * n),
        case("moved", block, (moved, -2, -1, 3, -2, 2)[: 2 * n]),
        case("unbatched", block[1:], around),
        case("empty_batch", (0, *block[1:]), around, covers="empty"),
        case("special", block, (3, 2) * n, form=partial(special_gradient, step=4)),
        case("odd", odd, around, covers="odd_sizes"),
    )


def wrong_pads(op: str, n: int) -> tuple[Sample, ...]:
    """Arguments that a padding of ``n`` dimensions refuses."""
    right = pad("right", (2, 3, *(5, 4, 6)[:n]), (2, 1) * n, op=op, dtypes=FLOATING[2:3])
    return (
        right.but("wrong_shape", padding=[2, 2] * n),
        right.but("integers", dtypes=(torch.int64,)),
        right.but("mixed_dtypes", self=Tensor.double),
        right.but("much_padding", padding=[*(2, 1) * n, 0]),
    )


def bench_pad(
    ops: dict[int, str], name: str, shape: Sequence[int], padding: Sequence[int]
) -> Sample:
    """The same of the operator for as many dimensions as ``padding`` has."""
    return pad(name, shape, padding, op=ops[len(padding) // 2], dtypes=FLOATING[:3])


def scatters(case: Callable[..., Sample]) -> tuple[Sample, ...]:
    """Arguments that any scatter takes; ``case`` makes a sample of a name and a function."""
    return (
        case("one_destination", lambda m: scattered(m, [4], 0, [1000], spread=1), "collisions"),
        case("odd_1", lambda m: scattered(m, [1], 0, [1]), "odd_sizes"),
        case("odd_63", lambda m: scattered(m, [63, 5], 0, [63, 5]), "odd_sizes"),
        case("odd_1000", lambda m: scattered(m, [3, 99], 1, [3, 1000]), "odd_sizes", "collisions"),
        case(
            "smaller_index",
            lambda m: scattered(m, [5, 6, 7], 1, [3, 20, 4], [5, 21, 6]),
            "collisions",
        ),
        case("negative_dim", lambda m: scattered(m, [4, 5, 6], -2, [4, 9, 6]), "negative_dim"),
        case("expanded_batches", scattered_batches, "collisions"),
        case("empty_index", lambda m: scattered(m, [4, 5], 0, [0, 5]), "empty"),
        case("empty_rows", lambda m: scattered(m, [4, 0], 0, [3, 0]), "empty"),
        case("scalar", lambda m: scattered(m, [], 0, [])),
    )


def wrong_scatters(case: Callable[..., Sample]) -> tuple[Sample, ...]:
    """Arguments that a scatter refuses; ``case`` makes a sample of a name and a function."""
    row = case("row", lambda m: scattered(m, [4], 0, [9]))
    return (
        row.but("index_too_large", index=lambda index: index + 4),
        row.but("index_negative", index=lambda index: ~index),
        row.but("index_not_integer", index=Tensor.double),
        row.but("index_of_two_dims", index=lambda index: index[:, None]),
        row.but("index_beyond_src", src=lambda src: src[1:]),
        case("index_beyond_self", lambda m: scattered(m, [4, 3], 0, [9, 4])),
        row.but("dim_out_of_range", dim=1),
        row.but("nowhere_to_go", self=lambda self: self[:0]),
        row.but("other_dtype", src=Tensor.double, dtypes=FLOATING[:3]),
    )
