"""Adding rows of a tensor to the destinations that an index names, or multiplying them by rows.

Two ways lead to sums that do not depend on the order of threads: integers, and sorted rows.
:mod:`detmode.cuda.rows.ways` chooses.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from detmode.cuda import (
    Launch,
    UnsizedLaunch,
    ctype,
    most_shared,
    new_empty,
    new_zeros,
    parts_of,
    planned,
    stretch,
)
from detmode.cuda.rows.positions import of_elements
from detmode.cuda.rows.shapes import AT_ONCE, CROWDED_COLUMNS, PIECE, SHARE, Rows, flat
from detmode.cuda.rows.sort import key_dtype, sorted_positions
from detmode.cuda.rows.source import FEW, INTEGERS, SORTED, TOGETHER, widths
from detmode.cuda.rows.ways import Way, choose_product, choose_sum
from detmode.cuda.strips import Strips

THREADS = 256
"""Of a block that reduces carries."""
TURNS = 16
"""Elements of a thread at most."""
MOST = 2**18
"""Threads from which each may have more elements: a GPU holds as many at once."""

Reduction: TypeAlias = Callable[[Tensor, Tensor, Tensor], None]
"""Reduces rows, planned by their shapes: called with out, index and source."""


def add_rows(
    out: Tensor,
    index: Tensor,
    source: Tensor,
    shape: Rows,
    *,
    alpha: complex = 1,
    include_self: bool = True,
    mean: bool = False,
    way: Way | Strips | None = None,
) -> None:
    """Add ``source`` to ``out`` where ``index`` says; a destination without addend keeps its bits.

    Args:
        out: contiguous, ``shape.destinations`` elements.
        index: contiguous int64, ``shape.rows`` positions in ``[0, shape.size)``, one for a row in
            each of ``shape.outer``, or one for each element of ``source``; where ``shape.wraps``,
            in ``[-shape.size, shape.size)``.
        source: contiguous, ``shape.addends`` elements, of the dtype of ``out``.
        shape: their layout.
        alpha: a factor for the addends.
        include_self: whether what a destination held is an addend too.
        mean: divide each sum by the number of its addends.
        way: None for the one that :func:`~detmode.cuda.rows.ways.choose_sum` chooses.
    """
    if shape.addends == 0:
        return
    scale = None if alpha == 1 else (float(alpha.real).hex(), float(alpha.imag).hex())
    by_row = index.numel() == shape.rows
    begin = source.data_ptr() % AT_ONCE
    aligned = not (begin or out.data_ptr() % AT_ONCE)
    shared = 0 if by_row else most_shared(out)
    plan = _sums(shape, out.dtype, by_row, begin, aligned, include_self, mean, scale, shared, way)
    plan(out, index, source)


def multiply_rows(
    out: Tensor,
    index: Tensor,
    source: Tensor,
    shape: Rows,
    *,
    include_self: bool = True,
    way: Way | None = None,
) -> None:
    """Multiply ``out`` by ``source`` where ``index`` says; other destinations keep their bits.

    Args:
        out: as for :func:`add_rows`, of a floating or integral dtype.
        index: likewise.
        source: likewise.
        shape: likewise.
        include_self: whether what a destination held is a factor too.
        way: few or sorted; None for the one that the shape chooses.
    """
    if shape.addends == 0:
        return
    plan = _products(shape, out.dtype, index.numel() == shape.rows, include_self, way)
    plan(out, index, source)


@planned
def _sums(
    shape: Rows,
    dtype: torch.dtype,
    by_row: bool,
    begin: int,
    aligned: bool,
    include_self: bool,
    mean: bool,
    scale: tuple[str, str] | None,
    most_shared: int,
    way: Way | Strips | None,
) -> Reduction:
    """Plan sums; ``scale`` is alpha as text, in which 0.0 is not -0.0.

    ``begin``: of source, in bytes from where wide rows are read at once. ``aligned``: both source
    and out begin there.
    """
    named = shape if by_row else flat(shape)
    way = way or choose_sum(
        shape, dtype, by_row=by_row, mean=mean, aligned=aligned, shared=most_shared
    )
    if way in (Way.FEW, Way.SORTED, Way.WIDE):
        wide = way is Way.WIDE
        width = AT_ONCE // dtype.itemsize if wide else widths(dtype)[-1]
        # Reading several columns at once needs aligned rows, and does not change the bits.
        if not wide and (begin % 8 or named.inner % width):
            width = 1
        row = _summed(dtype, width, wide)
        return _by_rows(row, shape, named, way is Way.FEW, include_self, mean, scale)
    bits = (shape.rows + 1).bit_length()
    if isinstance(way, Strips):
        launch = _in_blocks(dtype, include_self, mean, scale, way.threads, way.shared)
        at_once = launch.of_blocks(way.blocks, way.strip, way.strips, shape, bits)
        return partial(_reduce_at_once, at_once)
    crowded, together = shape.inner <= CROWDED_COLUMNS, TOGETHER if way is Way.TOGETHER else 1
    launches = _integers(dtype, by_row, include_self, crowded, together, mean, scale)
    n, (components, words) = shape.destinations, parts_of(dtype)
    sizes = n * components * words, n if mean else 0, (n * components + 1) // 2
    # More turns than one where enough threads are left.
    threads = max(-(-shape.addends // TURNS), min(-(-shape.addends // together), MOST))
    return partial(_add_integers, launches, shape, shape.addends, threads, n, bits, sizes, mean)


@planned
def _in_blocks(
    dtype: torch.dtype,
    include_self: bool,
    mean: bool,
    scale: tuple[str, str] | None,
    threads: int,
    shared: int,
) -> UnsizedLaunch:
    """The launch of sums in shared memory."""
    return UnsizedLaunch(
        INTEGERS, f"index_add_strips<{ctype(dtype)}>", ("strip", "strips", "shape", "headroom"),
        threads, shared, include_self=include_self, mean=mean, alpha=_scaling(scale),
    )  # fmt: skip


Scaling = namedtuple("Scaling", "scaled re im")
"""The struct of ``scaling.cuh``: whether addends have a factor, and which."""


def _scaling(scale: tuple[str, str] | None) -> Scaling:
    return Scaling(scale is not None, *map(float.fromhex, scale or ("1", "0")))


@planned
def _products(
    shape: Rows, dtype: torch.dtype, by_row: bool, include_self: bool, way: Way | None
) -> Reduction:
    # product_t of product.cuh
    words = 1 if not dtype.is_floating_point else 3 if dtype is torch.float64 else 2
    row = _Row(f"row_product<{ctype(dtype)}>", 1, words, wide=False)
    named = shape if by_row else flat(shape)
    few = (way or choose_product(shape, by_row=by_row)) is Way.FEW
    return _by_rows(row, shape, named, few, include_self, mean=False, scale=None)


_Integers: TypeAlias = tuple[UnsizedLaunch, UnsizedLaunch, UnsizedLaunch, UnsizedLaunch]


@planned
def _integers(
    dtype: torch.dtype,
    by_row: bool,
    include_self: bool,
    crowded: bool,
    together: int,
    mean: bool,
    scale: tuple[str, str] | None,
) -> _Integers:
    """The launches of sums as integers, in their order."""
    scalar, addends = ctype(dtype), {"by_row": by_row, "alpha": _scaling(scale)}
    counts: dict[str, Any] = {} if mean else {"counts": None}

    def unsized(kernel: str, types: str, *unset: str, **numbers: Any) -> UnsizedLaunch:
        return UnsizedLaunch(INTEGERS, f"index_add_{kernel}<{types}>", unset, **numbers)

    reading = f"{scalar}, {str(crowded).lower()}, {together}"
    return (
        unsized("observe", f"{scalar}, {together}", "n", "shape", **addends),
        unsized("admit_self", scalar, "n", "headroom", include_self=include_self),
        unsized("accumulate", reading, "n", "shape", "headroom", **addends, **counts),
        unsized("finish", scalar, "n", "headroom", include_self=include_self, **counts),
    )


def _add_integers(
    launches: _Integers,
    shape: Rows,
    addends: int,
    threads: int,
    n: int,
    bits: int,
    sizes: tuple[int, int, int],
    mean: bool,
    out: Tensor,
    index: Tensor,
    source: Tensor,
) -> None:
    """Add rows as integers, by what their plan has worked out of ``shape``.

    ``addends`` and ``n``: elements of source and of out. ``threads``: for those of source.
    ``bits``: by which the sum of all rows may be longer than an addend. ``sizes``: words of the
    sums, of the counts, and of the keys.
    """
    observe, admit_self, accumulate, finish = launches
    n_sums, n_counts, n_keys = sizes
    # One allocation, so one fill.
    scratch = new_zeros(out, (n_sums + n_counts + n_keys,), torch.int64)
    sums, keys = stretch(scratch, 0, n_sums), stretch(scratch, n_sums + n_counts, n_keys)
    keys = keys.view(torch.int32)
    counts = {"counts": stretch(scratch, n_sums, n_counts)} if mean else {}
    observe.launch(threads, addends, shape, index=index, source=source, keys=keys)
    admit_self.launch(n, n, bits, self=out, keys=keys, sums=sums)
    accumulate.launch(
        threads, addends, shape, bits,
        index=index, source=source, keys=keys, sums=sums, **counts,
    )  # fmt: skip
    finish.launch(n, n, bits, keys=keys, sums=sums, out=out, **counts)


class _Row(NamedTuple):
    """The reduction of rows.

    Args:
        name: of the struct that reduces one element after the other, as a template's argument.
        width: the columns that a thread reduces side by side.
        words: the words of 64 bits that it carries of each.
        wide: the rows are wide.
    """

    name: str
    width: int
    words: int
    wide: bool


@planned
def _summed(dtype: torch.dtype, width: int, wide: bool) -> _Row:
    components, words = parts_of(dtype)
    return _Row(f"row_sum<{ctype(dtype)}>", width, components * words, wide)


def _by_rows(
    row: _Row,
    shape: Rows,
    named: Rows,
    few: bool,
    include_self: bool,
    mean: bool,
    scale: tuple[str, str] | None,
) -> Reduction:
    """Plan the reduction of rows: at once where they are ``few``, otherwise sorted.

    ``named`` is their layout in which each has an index.
    """
    if not few:
        launches = _sorted(row, key_dtype(named.size), include_self, mean, scale)
        return partial(_reduce_sorted, launches, row, shape, named)
    launch = _few(row.name, row.width, named is shape, include_self, mean, scale)
    return partial(_reduce_at_once, launch.of_threads(named.addends // row.width, shape))


def _reduce_at_once(launch: Launch, out: Tensor, index: Tensor, source: Tensor) -> None:
    launch(index=index, source=source, out=out)


@planned
def _few(
    name: str,
    width: int,
    by_row: bool,
    include_self: bool,
    mean: bool,
    scale: tuple[str, str] | None,
) -> UnsizedLaunch:
    """The launch that reduces few rows."""
    return UnsizedLaunch(
        FEW, f"few_rows<{name}, {width}>", ("shape",),
        by_row=by_row, include_self=include_self, mean=mean, alpha=_scaling(scale),
    )  # fmt: skip


@planned
def _sorted(
    row: _Row, key: torch.dtype, include_self: bool, mean: bool, scale: tuple[str, str] | None
) -> tuple[UnsizedLaunch, UnsizedLaunch]:
    """The launch that reduces sorted rows, and that of what their pieces carry."""
    types = f"{row.name}, {row.width}, {ctype(key)}"
    numbers = {"include_self": include_self, "alpha": _scaling(scale)}
    if row.wide:
        rows = UnsizedLaunch(SORTED, f"wide_rows<{types}>", ("shape",), **numbers)
        return rows, carrying(f"{types}, true", include_self)
    rows = UnsizedLaunch(SORTED, f"sorted_rows<{types}>", ("shape",), mean=mean, **numbers)
    return rows, carrying(types, include_self, mean)


def _reduce_sorted(
    launches: tuple[UnsizedLaunch, UnsizedLaunch],
    row: _Row,
    shape: Rows,
    named: Rows,
    out: Tensor,
    index: Tensor,
    source: Tensor,
) -> None:
    if named is not shape:
        index, shape = of_elements(index, shape), named
    keys, order = sorted_positions(index, shape.size, wraps=shape.wraps)
    rows, carry = launches
    pieces = -(-shape.rows // SHARE) if row.wide else pieces_of(shape.rows)
    carries = new_carries(out, shape, row.words)
    rows.launch(
        pieces * (shape.outer * shape.inner // row.width), shape,
        keys=keys, order=order, source=source, out=out, carries=carries,
    )  # fmt: skip
    reduce_carries(carry, row.width, shape, keys=keys, out=out, carries=carries)


@planned
def carrying(types: str, include_self: bool, mean: bool = False) -> UnsizedLaunch:
    """The launch that reduces what pieces carry, for these template arguments."""
    return UnsizedLaunch(
        SORTED, f"sorted_carries<{types}>", ("shape", "level", "owned"), THREADS,
        include_self=include_self, mean=mean,
    )  # fmt: skip


def pieces_of(rows: int) -> int:
    """Return the pieces of so many sorted rows, or carries, each reduced one after the other."""
    return -(-rows // PIECE)


def new_carries(out: Tensor, shape: Rows, words: int) -> Tensor | None:
    """Return memory for what the pieces of sorted rows carry, at all levels; None for one piece.

    Args:
        out: as for :func:`add_rows`.
        shape: the layout of the rows.
        words: the words of 64 bits that a piece carries of each column.
    """
    slots, pieces = 0, pieces_of(shape.rows)
    while pieces > 1:
        # Each piece carries its first run and its last one.
        slots += 2 * pieces
        pieces = pieces_of(2 * pieces)
    if not slots:
        return None
    return new_empty(out, (slots * shape.outer * shape.inner * words,), torch.float64)


def reduce_carries(
    carry: UnsizedLaunch,
    width: int,
    shape: Rows,
    *,
    keys: Tensor,
    out: Tensor,
    carries: Tensor | None,
) -> None:
    """Launch the reduction of what the pieces of sorted rows carry, level by level.

    Args:
        carry: by :func:`carrying`.
        width: the columns that a thread reduces side by side.
        shape: the layout of the rows.
        keys: the destinations of the rows, ascending, int32 or int64.
        out: as for :func:`add_rows`.
        carries: by :func:`new_carries`, with those of the rows.
    """
    groups, pieces, level = shape.outer * shape.inner // width, pieces_of(shape.rows), 0
    while pieces > 1:
        pieces, level = pieces_of(2 * pieces), level + 1
        # Few pieces of a few columns are a block's, which goes on through all levels by itself.
        owned = THREADS // pieces if pieces <= PIECE else 0
        blocks = -(-groups // owned) if owned else -(-pieces * groups // THREADS)
        carry.launch_blocks(blocks, shape, level, owned, keys=keys, out=out, carries=carries)
        if owned:
            return
