"""The largest or smallest of the rows that an index brings to a destination."""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda import Launch, Source, UnsizedLaunch, ctype, new_full, planned
from detmode.cuda.dtypes import FLOATING, INTEGRAL
from detmode.cuda.rows.shapes import Rows

SOURCE = Source(
    __file__,
    "extrema.cu",
    entries=tuple(
        f"index_reduce_{kernel}<{ctype(dtype)}>"
        for kernel in ("observe", "finish")
        for dtype in FLOATING + INTEGRAL
    ),
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
        index: likewise.
        source: likewise.
        shape: likewise.
        largest: whether the maximum is meant, not the minimum.
        include_self: whether what a destination held takes part; for int32 and int64 it must,
            because each of their values has a key and none is left for "nothing".
    """
    by_row = index.numel() == shape.rows
    key, observe, finish = _plan(out.dtype, shape, by_row, largest, include_self)
    keys = new_full(out, (shape.destinations,), _NOTHING[key], key)
    observe(index=index, source=source, keys=keys)
    finish(keys=keys, out=out)


# The keys of destinations of which nothing was observed.
_NOTHING = {key: torch.iinfo(key).min for key in (torch.int32, torch.int64)}


@planned
def _plan(
    dtype: torch.dtype, shape: Rows, by_row: bool, largest: bool, include_self: bool
) -> tuple[torch.dtype, Launch, Launch]:
    """The keys' dtype, the launch that makes keys of what comes, and the one that reads them."""
    addends, n = shape.addends, shape.destinations
    observe = _unsized("observe", dtype, ("n", "shape"), by_row=by_row, largest=largest)
    finish = _unsized("finish", dtype, ("n",), include_self=include_self, largest=largest)
    key = torch.int64 if dtype.itemsize == 8 else torch.int32
    return key, observe.of_threads(addends, addends, shape), finish.of_threads(n, n)


@planned
def _unsized(
    kernel: str, dtype: torch.dtype, unset: tuple[str, ...], **numbers: bool
) -> UnsizedLaunch:
    return UnsizedLaunch(SOURCE, f"index_reduce_{kernel}<{ctype(dtype)}>", unset, **numbers)
