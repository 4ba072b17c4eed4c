"""The CUDA source of the family, with its entries."""

from __future__ import annotations

import torch

from detmode.cuda import Source, ctype

DTYPES = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)
_ELEMENTS = ("observe", "admit_self", "accumulate", "finish")
_ROWS = ("sum_rows", "sum_carries")


def widths(dtype: torch.dtype) -> tuple[int, ...]:
    """Return the neighbouring columns that a thread can serve: one, or eight bytes of them."""
    return (1, 8 // dtype.itemsize) if dtype.itemsize < 8 else (1,)


SOURCE = Source(
    __file__,
    "sums.cu",
    entries=(
        "index_put_linearize",
        *(f"index_add_{kernel}<{ctype(dtype)}>" for kernel in _ELEMENTS for dtype in DTYPES),
        *(
            f"index_add_{kernel}<{ctype(dtype)}, {width}>"
            for kernel in _ROWS
            for dtype in DTYPES
            for width in widths(dtype)
        ),
    ),
)
