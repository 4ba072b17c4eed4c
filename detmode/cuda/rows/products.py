"""Multiplying the destinations that an index names by rows of a tensor, in a fixed order."""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda import Source, ctype, empty, launch
from detmode.cuda.dtypes import FLOATING, INTEGRAL
from detmode.cuda.rows.positions import of_elements
from detmode.cuda.rows.shapes import PIECE, Rows, flat, sort_dtype

SOURCE = Source(
    __file__,
    "reductions.cu",
    entries=tuple(
        f"index_reduce_{kernel}<{ctype(dtype)}>"
        for kernel in ("multiply_rows", "multiply_carries", "observe", "finish")
        for dtype in FLOATING + INTEGRAL
    ),
)


def multiply_rows(
    out: Tensor, index: Tensor, source: Tensor, shape: Rows, *, include_self: bool = True
) -> None:
    """Multiply ``out`` by ``source`` where ``index`` says; other destinations keep their bits.

    Args:
        out: contiguous, ``shape.destinations`` elements, of a floating or integral dtype.
        index: contiguous int64, ``shape.rows`` positions in ``[0, shape.size)``, one for a row in
            each of ``shape.outer``, or one for each element of ``source``.
        source: contiguous, ``shape.addends`` elements, of the dtype of ``out``.
        shape: how they lie.
        include_self: whether what a destination held is a factor too.
    """
    if shape.addends == 0:
        return
    if index.numel() != shape.rows:
        index, shape = of_elements(index, shape), flat(shape)
    columns = shape.outer * shape.inner
    scalar = ctype(out.dtype)
    keys, order = torch.sort(index.view(-1).to(sort_dtype(shape.size)), stable=True)

    def slots(n: int) -> tuple[int, Tensor | None, Tensor | None]:
        """Threads for n items, and where their pieces' carries go; the last launch has none."""
        pieces = -(-n // PIECE)
        if pieces == 1:
            return columns, None, None
        carry_keys = empty((2 * pieces,), torch.int64, out.device)
        carries = empty((2 * pieces * columns * _words(out.dtype),), torch.int64, out.device)
        return pieces * columns, carry_keys, carries

    threads, carry_keys, carries = slots(shape.rows)
    lies = {"out": out, "shape": shape, "include_self": include_self}
    launch(
        SOURCE, f"index_reduce_multiply_rows<{scalar}>", threads,
        index=index, keys=keys.to(torch.int64), order=order, source=source,
        carry_keys=carry_keys, carries=carries, **lies,
    )  # fmt: skip
    while carry_keys is not None:
        read_keys, read, n = carry_keys, carries, carry_keys.numel()
        threads, carry_keys, carries = slots(n)
        launch(
            SOURCE, f"index_reduce_multiply_carries<{scalar}>", threads,
            keys=read_keys, carries_read=read, carry_keys=carry_keys, carries=carries, n=n, **lies,
        )  # fmt: skip


def _words(dtype: torch.dtype) -> int:
    """64-bit words of a product on its way: product_t of product.cuh."""
    if not dtype.is_floating_point:
        return 1
    return 3 if dtype is torch.float64 else 2
