"""The CUDA files of this family."""

from __future__ import annotations

import torch

from detmode.cuda import Source, ctype

DTYPES = (torch.float16, torch.float32, torch.float64)
"""What torchvision's CUDA kernels take."""
CHANNELS = 16
"""Channels that a thread of roi_align owns: they share a bin's weights."""

_NAMES = tuple(map(ctype, DTYPES))
_ON_POOLS = (
    "roi_pool_observe",
    "roi_pool_accumulate",
    "roi_pool_finish",
    "ps_roi_pool_backward",
)

ALIGN = Source(
    __file__,
    "align.cu",
    entries=tuple(
        f"roi_align_backward<{name}, {kind}>"
        for name in _NAMES
        for kind in (f"{CHANNELS}, false", "1, true")
    ),
)
POOL = Source(
    __file__,
    "pool.cu",
    entries=("ps_check_mapping", *(f"{each}<{name}>" for each in _ON_POOLS for name in _NAMES)),
)
