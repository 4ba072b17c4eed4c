"""Sums of single elements in bins by exponent: one pass over the addends, exactly rounded.

A destination has an integer of 64 bits for each 16 or 32 exponents that all addends span. How many
that are is found on the GPU, from the addends and initial values, without a wait; memory is there
for all exponents of the dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda import Source, ctype, launch, launch_blocks, new_empty, of_dtypes, stretch
from detmode.cuda.rows.shapes import Rows

THREADS = 256
"""Of a block, as in ``exponent_bins.cu``."""
TOGETHER = 4
"""Elements that a thread adds at once; see there."""
MOST_ADDENDS = (1 << 24) - 2
"""Of one destination, so that no bin overflows; with its initial value they are below 2**24."""
BINS = {torch.float32: 16, torch.bfloat16: 8, torch.float16: 2}
"""Of a destination, at most."""
LEAST_ADDENDS = 4
"""Addends for each destination from which the bins are worth their memory, and their time even
where the addends span all exponents."""
READ = 8
"""Elements that a thread looks at before it reads on, for the extent of their exponents."""
MOST_BLOCKS = 512
"""Blocks that look for it; each block of the next launch reads what they found."""

SOURCE = Source(
    __file__,
    "exponent_bins.cu",
    entries=of_dtypes(BINS, "bins_extent", "bins_begin", "bins_add", "bins_finish"),
)


def has_bins(shape: Rows, dtype: torch.dtype) -> bool:
    """Return whether sums of elements that each have an index are to be added in bins.

    Args:
        shape: their layout.
        dtype: of the elements.
    """
    outer, rows, inner, size, _ = shape
    single = outer == inner == 1 and dtype in BINS
    return single and LEAST_ADDENDS * size <= rows <= MOST_ADDENDS


def add_in_bins(
    out: Tensor, index: Tensor, source: Tensor, shape: Rows, alpha: tuple[object, ...]
) -> None:
    """Add ``source`` to ``out`` where ``index`` says. Nothing but the last step rounds.

    Args:
        out: contiguous, ``shape.size`` elements of one of the dtypes of ``BINS``.
        index: contiguous int64, ``shape.rows`` positions; see
            :func:`~detmode.cuda.rows.sums.add_rows`.
        source: contiguous, as many elements, of the dtype of ``out``.
        shape: one plane of one column, of at most ``MOST_ADDENDS`` rows.
        alpha: the struct of ``scaling.cuh``.
    """
    scalar, n, size = ctype(out.dtype), shape.rows, shape.size
    parts = min(-(-n // (THREADS * READ)), MOST_BLOCKS)
    n_bins = (1 + BINS[out.dtype]) * size
    # Three int32 of each part, and of the whole.
    n_extents = (3 * (parts + 1) + 1) // 2
    scratch = new_empty(out, (n_bins + n_extents,), torch.int64)
    extents, bins = (
        stretch(scratch, n_bins, n_extents).view(torch.int32),
        stretch(scratch, 0, n_bins),
    )
    launch_blocks(
        SOURCE, f"bins_extent<{scalar}>", parts, THREADS,
        source=source, self=out, extents=extents, n=n, size=size, alpha=alpha,
    )  # fmt: skip
    launch_blocks(
        SOURCE, f"bins_begin<{scalar}>", -(-size // THREADS), THREADS,
        self=out, extents=extents, bins=bins, size=size, parts=parts,
    )  # fmt: skip
    launch(
        SOURCE, f"bins_add<{scalar}>", -(-n // TOGETHER),
        index=index, source=source, extents=extents, bins=bins, n=n, size=size,
        wraps=bool(shape.wraps), parts=parts, alpha=alpha,
    )  # fmt: skip
    launch(
        SOURCE, f"bins_finish<{scalar}>", size,
        extents=extents, bins=bins, out=out, size=size, parts=parts,
    )  # fmt: skip
