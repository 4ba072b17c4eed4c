"""Assigning rows of a tensor to the destinations that an index names; the last duplicate stays.

Three ways lead there, and give the same bits: one launch in which the thread of each of a few rows
looks for later ones, an owner elected for each destination, and a stable sort of the index. The
launches move words of bits and know no dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda import Source, UnsizedLaunch, ctype, new_full, planned
from detmode.cuda.rows.positions import of_elements
from detmode.cuda.rows.shapes import KEYS, Rows, are_few, elects, flat
from detmode.cuda.rows.sort import sorted_positions

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
        "assign_elect",
        *(f"assign_few<{ctype(word)}>" for word in WORDS.values()),
        *(f"assign_owned<{ctype(word)}>" for word in WORDS.values()),
        *(f"assign_sorted<{ctype(word)}, {key}>" for word in WORDS.values() for key in KEYS),
    ),
)


def assign_rows(
    out: Tensor, index: Tensor, source: Tensor, shape: Rows, *, unique: bool = False
) -> None:
    """Write ``source`` to ``out`` where ``index`` says; what no row names keeps its bits.

    Args:
        out: as for :func:`~detmode.cuda.rows.sums.add_rows`, of any dtype that is not quantized.
        index: likewise.
        source: likewise.
        shape: likewise.
        unique: no destination is named twice.
    """
    if shape.addends == 0:
        return
    by_row = index.numel() == shape.rows
    named = shape if by_row else flat(shape)
    word = _word(named.inner, out, source)
    words, to = (tensor.view(-1).view(word) for tensor in (source, out))
    n = words.numel()
    unique = unique or named.rows == 1
    if not unique and by_row and are_few(_in_words(shape, out, word)):
        moves = _unsized(f"assign_few<{ctype(word)}>")
        moves.launch(n, n, _in_words(shape, out, word), index=index, source=words, out=to)
        return
    if unique or elects(named):
        owners = {} if unique else {"owners": _elect(index, shape, by_row)}
        absent = {"owners": None} if unique else {}
        moves = _unsized(f"assign_owned<{ctype(word)}>", by_row=by_row, **absent)
        moves.launch(n, n, _in_words(shape, out, word), index=index, source=words, out=to, **owners)
        return
    positions = index if by_row else of_elements(index, shape)
    keys, order = sorted_positions(positions, named.size, wraps=named.wraps)
    moves = _unsized(f"assign_sorted<{ctype(word)}, {ctype(keys.dtype)}>")
    moves.launch(n, n, _in_words(named, out, word), keys=keys, order=order, source=words, out=to)


@planned
def _unsized(entry: str, **numbers: bool | None) -> UnsizedLaunch:
    return UnsizedLaunch(SOURCE, entry, ("n", "shape"), **numbers)


def _elect(index: Tensor, shape: Rows, by_row: bool) -> Tensor:
    """The last source of each destination, -1 where there is none."""
    n = index.numel()
    slots = shape.size if by_row else shape.destinations
    owners = new_full(index, (slots,), -1, torch.int64)
    elected = shape._replace(outer=1, inner=1) if by_row else shape
    _unsized("assign_elect").launch(n, n, elected, index=index, owners=owners)
    return owners


def _in_words(shape: Rows, out: Tensor, word: torch.dtype) -> Rows:
    return shape._replace(inner=shape.inner * out.itemsize // word.itemsize)


def _word(run: int, *tensors: Tensor) -> torch.dtype:
    """The widest word of which ``run`` elements are a whole number, aligned in every tensor."""
    itemsize = tensors[0].itemsize
    places = [run * itemsize]
    for tensor in tensors:
        places += [tensor.data_ptr(), int(tensor.storage_offset()) * itemsize]
    if run == 1:
        return WORDS[itemsize]
    return next(word for width, word in WORDS.items() if not any(p % width for p in places))
