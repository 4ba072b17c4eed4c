"""Assigning rows of a tensor to the destinations that an index names; the last duplicate stays.

All ways there give the same bits; :mod:`detmode.cuda.rows.ways` chooses one. The launches move
words of bits and know no dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from detmode.cuda import (
    Launch,
    Source,
    UnsizedLaunch,
    ctype,
    most_shared,
    new_full,
    planned,
    stretch,
)
from detmode.cuda.rows.positions import of_elements
from detmode.cuda.rows.shapes import KEYS, Rows, flat
from detmode.cuda.rows.sort import key_dtype, sorted_positions
from detmode.cuda.rows.ways import Way, choose_assignment
from detmode.cuda.strips import Strips

WORDS = {
    16: torch.complex128,
    8: torch.int64,
    4: torch.int32,
    2: torch.int16,
    1: torch.uint8,
}
"""By their bytes: what moves for any dtype. ATen's own kernels rewrite some NaNs of 16 bits."""

_WIDEST = max(WORDS)

Move: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]
"""Moves words, planned by their layout: called with out, index and source."""

SOURCE = Source(
    __file__,
    "assign.cu",
    entries=(
        *(f"assign_elect<{key}>" for key in KEYS),
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
    by_row, itemsize = index.numel() == shape.rows, out.itemsize
    # Of both, in bytes: what is seen as words begins at one, in its memory too.
    begins = source.data_ptr() | out.data_ptr()
    begins |= (int(source.storage_offset()) | int(out.storage_offset())) * itemsize
    shared = 0 if by_row else most_shared(out)
    word, move = _moving(shape, by_row, unique, itemsize, begins % _WIDEST, shared, way)
    move(_as_words(out, word), index, _as_words(source, word))


@planned
def _moving(
    shape: Rows,
    by_row: bool,
    unique: bool,
    itemsize: int,
    begins: int,
    most_shared: int,
    way: Way | Strips | None,
) -> tuple[torch.dtype, Move]:
    """The dtype of the words that move, and what moves them."""
    named = shape if by_row else flat(shape)
    word = _word(named.inner, itemsize, begins)
    in_words = named._replace(inner=named.inner * itemsize // word.itemsize)
    # Without an index for each row, words are elements.
    moved = in_words if by_row else shape
    way = way or choose_assignment(moved, by_row=by_row, unique=unique, shared=most_shared)
    scalar, n = ctype(word), in_words.addends
    if isinstance(way, Strips):
        strips = _in_blocks(f"assign_strips<{scalar}>", way.threads, way.shared)
        return word, partial(_move, strips.of_blocks(way.blocks, way.strip, way.strips, shape))
    if way is Way.FEW:
        return word, partial(_move, _unsized(f"assign_few<{scalar}>").of_threads(n, n, in_words))
    if way is Way.SORTED:
        entry = f"assign_sorted<{scalar}, {ctype(key_dtype(named.size))}>"
        launch = _unsized(entry).of_threads(n, n, in_words)
        return word, partial(_move_sorted, launch, shape, named)
    entry = f"assign_owned<{scalar}, {ctype(key_dtype(named.rows))}>"
    if way is Way.DIRECT:
        launch = _unsized(entry, by_row=by_row, owners=None).of_threads(n, n, moved)
        return word, partial(_move, launch)
    launch = _unsized(entry, by_row=by_row).of_threads(n, n, moved)
    return word, partial(_move_owned, launch, shape, by_row)


@planned
def _unsized(entry: str, **numbers: bool | None) -> UnsizedLaunch:
    return UnsizedLaunch(SOURCE, entry, ("n", "shape"), **numbers)


@planned
def _in_blocks(entry: str, threads: int, shared: int) -> UnsizedLaunch:
    return UnsizedLaunch(SOURCE, entry, ("strip", "strips", "shape"), threads, shared)


def _move(launch: Launch, out: Tensor, index: Tensor, source: Tensor) -> None:
    launch(index=index, source=source, out=out)


def _move_owned(
    launch: Launch, shape: Rows, by_row: bool, out: Tensor, index: Tensor, source: Tensor
) -> None:
    launch(index=index, owners=_elect(index, shape, by_row), source=source, out=out)


def _elect(index: Tensor, shape: Rows, by_row: bool) -> Tensor:
    """The last source of each destination, -1 where there is none."""
    n = index.numel()
    slots, owner = shape.size if by_row else shape.destinations, key_dtype(n)
    owners = new_full(index, (slots,), -1, owner)
    elected = shape._replace(outer=1, inner=1) if by_row else shape
    _unsized(f"assign_elect<{ctype(owner)}>").launch(n, n, elected, index=index, owners=owners)
    return owners


def _move_sorted(
    launch: Launch, shape: Rows, named: Rows, out: Tensor, index: Tensor, source: Tensor
) -> None:
    positions = index if named is shape else of_elements(index, shape)
    keys, order = sorted_positions(positions, named.size, wraps=named.wraps)
    launch(keys=keys, order=order, source=source, out=out)


def _word(run: int, itemsize: int, begins: int) -> torch.dtype:
    """The widest word that ``run`` elements are made of, and at which they begin."""
    if run == 1:
        return WORDS[itemsize]
    odd = run * itemsize | begins
    return next(word for width, word in WORDS.items() if odd % width == 0)


def _as_words(tensor: Tensor, word: torch.dtype) -> Tensor:
    if tensor.dtype is word:
        return tensor
    # A wider word may be longer than the last dimension.
    flat = tensor if tensor.itemsize == word.itemsize else stretch(tensor, 0, tensor.numel())
    return flat.view(word)
