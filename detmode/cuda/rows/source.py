"""The CUDA source of sums and products of rows, with its entries."""

from __future__ import annotations

import torch

from detmode.cuda import Source, ctype
from detmode.cuda.dtypes import COMPLEX, FLOATING, INTEGRAL
from detmode.cuda.rows.shapes import KEYS, PIECE, SHARE

_ELEMENTS = ("observe", "admit_self", "accumulate", "finish")


def width_of(dtype: torch.dtype, *, wide: bool = False) -> int:
    """Return the neighbouring columns of which a thread adds 8 bytes, or 16 of wide rows."""
    return max((16 if wide else 8) // dtype.itemsize, 1)


_ROWS = (
    *(
        f"row_sum<{ctype(dtype)}>, {width}"
        for dtype in FLOATING + COMPLEX
        for width in sorted({1, width_of(dtype)})
    ),
    *(f"row_product<{ctype(dtype)}>, 1" for dtype in FLOATING + INTEGRAL),
)
_SORTED = (
    *(f"{row}, {PIECE}, {key}" for row in _ROWS for key in KEYS),
    *(
        f"row_sum<{ctype(dtype)}>, {width_of(dtype, wide=True)}, {SHARE}, {KEYS[0]}"
        for dtype in FLOATING + COMPLEX
    ),
)

SOURCE = Source(
    __file__,
    "sums.cu",
    entries=(
        "index_put_linearize",
        *(f"narrow_index<{ctype(dtype)}>" for dtype in INTEGRAL[2:]),
        *(
            f"index_add_{kernel}<{ctype(dtype)}>"
            for kernel in _ELEMENTS
            for dtype in FLOATING + COMPLEX
        ),
        *(f"sorted_{items}<{rows}>" for items in ("rows", "carries") for rows in _SORTED),
        *(f"few_rows<{row}>" for row in _ROWS),
    ),
)
