"""Assigning rows of a tensor to the destinations that an index names; the last duplicate stays.

All ways there give the same bits; :mod:`detmode.cuda.rows.ways` chooses one. The launches move
words of bits and know no dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda import (
    Source,
    ctype,
    launch,
    launch_blocks,
    most_shared,
    new_empty,
    new_full,
    stretch,
)
from detmode.cuda.rows.positions import of_elements
from detmode.cuda.rows.shapes import KEYS, Rows, flat
from detmode.cuda.rows.sort import key_dtype, sorted_positions
from detmode.cuda.rows.strips import Strips
from detmode.cuda.rows.ways import MARK, Way, choose_assignment

WORDS = {
    16: torch.complex128,
    8: torch.int64,
    4: torch.int32,
    2: torch.int16,
    1: torch.uint8,
}
"""By their bytes: what moves for any dtype. ATen's own kernels rewrite some NaNs of 16 bits."""

SOURCE = Source(
    __file__,
    "assign.cu",
    entries=(
        *(f"assign_elect<{key}>" for key in KEYS),
        "assign_mark",
        "assign_elect_marked",
        *(f"assign_last<{ctype(word)}>" for word in WORDS.values()),
        *(f"assign_few<{ctype(word)}>" for word in WORDS.values()),
        *(f"assign_owned<{ctype(word)}, {key}>" for word in WORDS.values() for key in KEYS),
        *(f"assign_sorted<{ctype(word)}, {key}>" for word in WORDS.values() for key in KEYS),
        *(f"assign_strips<{ctype(word)}>" for word in WORDS.values()),
    ),
)


def assign_rows(
    out: Tensor,
    index: Tensor,
    source: Tensor,
    shape: Rows,
    *,
    unique: bool = False,
    way: Way | Strips | None = None,
) -> None:
    """Write ``source`` to ``out`` where ``index`` says; what no row names keeps its bits.

    Args:
        out: as for :func:`~detmode.cuda.rows.sums.add_rows`, of any dtype that is not quantized.
        index: likewise.
        source: likewise.
        shape: likewise.
        unique: no destination is named twice.
        way: None for the one that :func:`~detmode.cuda.rows.ways.choose_assignment` chooses.
    """
    if shape.addends == 0:
        return
    by_row = index.numel() == shape.rows
    named = shape if by_row else flat(shape)
    word = _word(named.inner, out, source)
    in_words = named._replace(inner=named.inner * out.itemsize // word.itemsize)
    # Without an index for each row, words are elements.
    moved = in_words if by_row else shape
    shared = 0 if by_row else most_shared(out)
    way = way or choose_assignment(
        moved, by_row=by_row, unique=unique, shared=shared, width=word.itemsize
    )
    scalar, n = ctype(word), in_words.addends
    words = {"source": _as_words(source, word), "out": _as_words(out, word)}
    if isinstance(way, Strips):
        launch_blocks(
            SOURCE, f"assign_strips<{scalar}>", way.blocks, way.threads, way.shared,
            index=index, strip=way.strip, strips=way.strips, shape=shape, **words,
        )  # fmt: skip
    elif way is Way.FEW:
        launch(SOURCE, f"assign_few<{scalar}>", n, index=index, n=n, shape=in_words, **words)
    elif way is Way.SORTED:
        positions = index if by_row else of_elements(index, shape)
        keys, order = sorted_positions(positions, named.size, wraps=named.wraps)
        entry = f"assign_sorted<{scalar}, {ctype(keys.dtype)}>"
        launch(SOURCE, entry, n, keys=keys, order=order, n=n, shape=in_words, **words)
    elif way is Way.ELECTED:
        launch(
            SOURCE, f"assign_owned<{scalar}, {ctype(key_dtype(named.rows))}>", n, index=index,
            owners=_elect(index, shape, by_row), n=n, shape=moved, by_row=by_row, **words,
        )  # fmt: skip
    else:
        lost = None if way is Way.DIRECT else _elect_in(words["out"], index, moved, by_row)
        launch(
            SOURCE, f"assign_last<{scalar}>", n,
            index=index, lost=lost, n=n, shape=moved, by_row=by_row, **words,
        )  # fmt: skip


def _elect(index: Tensor, shape: Rows, by_row: bool) -> Tensor:
    """The last source of each destination, -1 where there is none."""
    n, elected = index.numel(), _places(shape, by_row)
    owner = key_dtype(n)
    owners = new_full(index, (elected.destinations,), -1, owner)
    entry = f"assign_elect<{ctype(owner)}>"
    launch(SOURCE, entry, n, index=index, owners=owners, n=n, shape=elected)
    return owners


def _elect_in(out: Tensor, index: Tensor, shape: Rows, by_row: bool) -> Tensor:
    """Of each place whether a later one has its destination, whose first word holds the election.

    ``out`` and ``shape`` are in words of 4 bytes and more. What no place names keeps its bits.
    """
    n = index.numel()
    lost = new_empty(index, (n,), torch.uint8)
    step = out.itemsize // MARK * (shape.inner if by_row else 1)
    # A single element is contiguous, and may have a stride.
    marks = stretch(out, 0, out.numel()).view(torch.int32)
    for entry in ("assign_mark", "assign_elect_marked"):
        launch(
            SOURCE, entry, n, index=index, marks=marks, lost=lost, n=n,
            step=step, shape=_places(shape, by_row),
        )  # fmt: skip
    return lost


def _places(shape: Rows, by_row: bool) -> Rows:
    """The layout of what an index names: positions of rows, or elements."""
    return shape._replace(outer=1, inner=1) if by_row else shape


def _word(run: int, out: Tensor, source: Tensor) -> torch.dtype:
    """The widest word of which ``run`` elements of both are made, and at which they begin."""
    if run == 1:
        return WORDS[out.itemsize]
    # What is seen as words begins at one, in its memory too.
    offsets = int(source.storage_offset()) | int(out.storage_offset()) | run
    odd = offsets * out.itemsize | source.data_ptr() | out.data_ptr()
    return next(word for width, word in WORDS.items() if odd % width == 0)


def _as_words(tensor: Tensor, word: torch.dtype) -> Tensor:
    if tensor.dtype is word:
        return tensor
    # A wider word may be longer than the last dimension.
    flat = tensor if tensor.itemsize == word.itemsize else stretch(tensor, 0, tensor.numel())
    return flat.view(word)
