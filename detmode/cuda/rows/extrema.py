"""The largest or smallest of the rows that an index brings to a destination."""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda import Source, ctype, launch, new_full, of_dtypes
from detmode.cuda.dtypes import FLOATING, INTEGRAL
from detmode.cuda.rows.shapes import Rows

SOURCE = Source(
    __file__,
    "extrema.cu",
    entries=of_dtypes(FLOATING + INTEGRAL, "index_reduce_observe", "index_reduce_finish"),
)


def extreme_rows(
    out: Tensor,
    index: Tensor,
    source: Tensor,
    shape: Rows,
    *,
    largest: bool,
    include_self: bool = True,
) -> None:
    """Put the extremum of ``source`` where ``index`` says; other destinations keep their bits.

    Args:
        out: as for :func:`~detmode.cuda.rows.sums.add_rows`, of a floating or integral dtype.
        index: as for that function.
        source: as for that function, of the dtype of ``out``.
        shape: the layout of both.
        largest: whether the maximum is meant, not the minimum.
        include_self: whether what a destination held takes part; for int32 and int64 it must,
            because each of their values has a key and none is left for "nothing".
    """
    key = torch.int64 if out.dtype.itemsize == 8 else torch.int32
    # The key of a destination of which nothing was observed.
    keys = new_full(out, (shape.destinations,), torch.iinfo(key).min, key)
    launch(
        SOURCE, f"index_reduce_observe<{ctype(out.dtype)}>", shape.addends,
        index=index, source=source, keys=keys, n=shape.addends, shape=shape,
        by_row=index.numel() == shape.rows, largest=largest,
    )  # fmt: skip
    launch(
        SOURCE, f"index_reduce_finish<{ctype(out.dtype)}>", shape.destinations,
        keys=keys, out=out, n=shape.destinations, include_self=include_self, largest=largest,
    )  # fmt: skip
