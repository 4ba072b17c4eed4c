"""Groups of dtypes that kernels are made for, and rows ask for."""

from __future__ import annotations

import torch

REDUCED = (torch.float16, torch.bfloat16)
FLOATING = (*REDUCED, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
INTEGRAL = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
