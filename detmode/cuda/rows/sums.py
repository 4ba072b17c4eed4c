"""Adding rows of a tensor to the destinations that an index names, or multiplying them by rows.

Two ways lead to sums that do not depend on the order of threads; :mod:`detmode.cuda.rows.shapes`
says which is taken. It goes by shapes alone, so that it is the same on every GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda import accumulator_buffers, ctype, empty, launch
from detmode.cuda.rows.positions import from_the_start, of_elements, sorted_positions
from detmode.cuda.rows.shapes import (
    PIECE,
    SHARE,
    Rows,
    are_few,
    are_wide,
    flat,
    parts_of,
    sorts_rows,
)
from detmode.cuda.rows.source import SOURCE, width_of


def add_rows(
    out: Tensor,
    index: Tensor,
    source: Tensor,
    shape: Rows,
    *,
    alpha: complex = 1,
    include_self: bool = True,
    mean: bool = False,
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
    """
    if shape.addends == 0:
        return
    by_row, (components, words) = index.numel() == shape.rows, parts_of(out.dtype)
    if sorts_rows(shape, out.dtype, by_row):
        row, width = f"row_sum<{ctype(out.dtype)}>", width_of(out.dtype)
        _reduce_sorted(
            row, width, components * words, out, index, source, shape, include_self, alpha, mean
        )
        return
    scalar = ctype(out.dtype)
    n = shape.destinations
    keys, sums = accumulator_buffers(n, out.dtype, out.device)
    counts = torch.zeros(n, dtype=torch.int64, device=out.device) if mean else None
    headroom = (shape.rows + 1).bit_length()
    addends = {"index": index, "source": source, "n": shape.addends, "by_row": by_row}
    re, im = float(alpha.real), float(alpha.imag)
    addends |= {"shape": shape, "scaled": alpha != 1, "re": re, "im": im}
    launch(
        SOURCE, f"index_add_observe<{scalar}>", shape.addends,
        keys=keys, counts=counts, **addends,
    )  # fmt: skip
    launch(
        SOURCE, f"index_add_admit_self<{scalar}>", n,
        self=out, keys=keys, sums=sums, n=n, include_self=include_self, headroom=headroom,
    )  # fmt: skip
    launch(
        SOURCE, f"index_add_accumulate<{scalar}>", shape.addends,
        keys=keys, sums=sums, headroom=headroom, **addends,
    )  # fmt: skip
    launch(
        SOURCE, f"index_add_finish<{scalar}>", n,
        keys=keys, sums=sums, counts=counts, out=out, n=n, include_self=include_self,
        headroom=headroom,
    )  # fmt: skip


def multiply_rows(
    out: Tensor, index: Tensor, source: Tensor, shape: Rows, *, include_self: bool = True
) -> None:
    """Multiply ``out`` by ``source`` where ``index`` says; other destinations keep their bits.

    Args:
        out: as for :func:`add_rows`, of a floating or integral dtype.
        index: likewise.
        source: likewise.
        shape: likewise.
        include_self: whether what a destination held is a factor too.
    """
    if shape.addends == 0:
        return
    # product_t of product.cuh
    words = 1 if not out.is_floating_point() else 3 if out.dtype is torch.float64 else 2
    row = f"row_product<{ctype(out.dtype)}>"
    _reduce_sorted(row, 1, words, out, index, source, shape, include_self)


def _reduce_sorted(
    row: str,
    width: int,
    words: int,
    out: Tensor,
    index: Tensor,
    source: Tensor,
    shape: Rows,
    include_self: bool,
    alpha: complex = 1,
    mean: bool = False,
) -> None:
    """Launch for up to ``width`` columns a thread, each of which carries ``words`` of 64 bits."""
    by_row = index.numel() == shape.rows
    named, share = shape if by_row else flat(shape), PIECE
    if row.startswith("row_sum") and not mean and not are_few(named) and are_wide(named, out.dtype):
        width, share = width_of(out.dtype, wide=True), SHARE
    # Reading several columns at once needs aligned rows. Neither changes the bits.
    aligned = width * out.itemsize
    if named.inner % width or source.data_ptr() % aligned or out.data_ptr() % aligned:
        width, share = 1, PIECE
    addends = {"source": source, "include_self": include_self, "mean": mean}
    addends |= {"scaled": alpha != 1, "re": float(alpha.real), "im": float(alpha.imag)}
    if are_few(named):
        launch(
            SOURCE, f"few_rows<{row}, {width}>", named.addends // width,
            index=index, out=out, by_row=by_row, shape=shape, **addends,
        )  # fmt: skip
        return
    if not by_row:
        index, shape = of_elements(index, shape), named
    columns = shape.outer * shape.inner
    keys, order = sorted_positions(from_the_start(index, shape), shape.size)
    kernel = f"<{row}, {width}, {share}, {ctype(keys.dtype)}>"

    def slots(n: int) -> tuple[int, Tensor | None, Tensor | None]:
        """Threads for n items, and where their pieces' carries go; the last launch has none."""
        threads, pieces = -(-n // share) * columns // width, -(-n // PIECE)
        if pieces == 1:
            return threads, None, None
        carry_keys = empty((2 * pieces,), keys.dtype, out.device)
        carries = empty((2 * pieces * columns * words,), torch.float64, out.device)
        return threads, carry_keys, carries

    threads, carry_keys, carries = slots(shape.rows)
    launch(
        SOURCE, f"sorted_rows{kernel}", threads,
        keys=keys, order=order, out=out, carry_keys=carry_keys, carries=carries, shape=shape,
        **addends,
    )  # fmt: skip
    while carry_keys is not None:
        read_keys, read, n = carry_keys, carries, carry_keys.numel()
        threads, carry_keys, carries = slots(n)
        launch(
            SOURCE, f"sorted_carries{kernel}", threads,
            keys=read_keys, carries_read=read, counted=keys if mean else None, out=out,
            carry_keys=carry_keys, carries=carries, n=n, shape=shape, include_self=include_self,
        )  # fmt: skip
