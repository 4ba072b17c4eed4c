"""The CUDA sources of sums and products of rows, one for each way, with their entries."""

from __future__ import annotations

import torch

from detmode.cuda import Source, ctype, of_dtypes
from detmode.cuda.dtypes import COMPLEX, FLOATING, INTEGRAL
from detmode.cuda.rows.shapes import AT_ONCE, KEYS

TOGETHER = 4
"""Elements that a thread takes at once where there are many."""


MOST_CARRIED = 4
"""The most columns of a wide row's carries that a thread reduces side by side."""


def widths(dtype: torch.dtype) -> tuple[int, ...]:
    """Return the neighbouring columns that a thread can add: one, or eight bytes of them."""
    return (1, 8 // dtype.itemsize) if dtype.itemsize < 8 else (1,)


_REDUCED = (
    *(
        f"row_{what}<{ctype(dtype)}>, {n}"
        for what in ("sum", "mean")
        for dtype in FLOATING + COMPLEX
        for n in widths(dtype)
    ),
    *(f"row_product<{ctype(dtype)}>, 1" for dtype in FLOATING + INTEGRAL),
)

_WIDE = tuple((ctype(dtype), AT_ONCE // dtype.itemsize) for dtype in FLOATING + COMPLEX)

INTEGERS = Source(
    __file__,
    "integer_sums.cu",
    entries=(
        *of_dtypes(
            FLOATING + COMPLEX, "index_add_admit_self", "index_add_finish", "index_add_strips"
        ),
        *(
            f"index_add_{kernel}, {together}>"
            for dtype in FLOATING + COMPLEX
            for kernel in (
                f"observe<{ctype(dtype)}",
                f"accumulate<{ctype(dtype)}, false",
                f"accumulate<{ctype(dtype)}, true",
            )
            for together in (1, TOGETHER)
        ),
    ),
)

SORTED = Source(
    __file__,
    "sorted_rows.cu",
    entries=(
        *(
            f"sorted_{items}<{row}, {key}>"
            for items in ("rows", "carries")
            for row in _REDUCED
            for key in KEYS
        ),
        *(f"wide_rows<row_sum<{scalar}>, {n}, {KEYS[0]}>" for scalar, n in _WIDE),
        *(
            f"sorted_carries<row_sum<{scalar}>, {min(n, MOST_CARRIED)}, {KEYS[0]}, true>"
            for scalar, n in _WIDE
        ),
    ),
)

FEW = Source(__file__, "few_rows.cu", entries=[f"few_rows<{row}>" for row in _REDUCED])
