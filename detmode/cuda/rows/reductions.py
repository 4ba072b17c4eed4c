"""The CUDA source of the family, with its entries."""

from __future__ import annotations

from detmode.cuda import Source, ctype
from detmode.cuda.dtypes import FLOATING, INTEGRAL

DTYPES = FLOATING + INTEGRAL
_KERNELS = ("multiply_rows", "multiply_carries", "observe", "finish")

SOURCE = Source(
    __file__,
    "reductions.cu",
    entries=tuple(
        f"index_reduce_{kernel}<{ctype(dtype)}>" for kernel in _KERNELS for dtype in DTYPES
    ),
)
