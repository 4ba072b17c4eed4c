"""Groups of dtypes that kernels are made for and rows ask for, and the dtypes of CUDA code."""

from __future__ import annotations

import torch

REDUCED = (torch.float16, torch.bfloat16)
FLOATING = (*REDUCED, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
INTEGRAL = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

CTYPES = {
    torch.float16: "half",
    torch.bfloat16: "bfloat16",
    torch.float32: "float",
    torch.float64: "double",
    torch.complex64: "complex<float>",
    torch.complex128: "complex<double>",
    torch.bool: "bool",
    torch.uint8: "uint8_t",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
    torch.uint16: "uint16_t",
    torch.uint32: "uint32_t",
    torch.uint64: "uint64_t",
}
"""The names of dtypes in CUDA code."""

OPMATH = {dtype: torch.float32 for dtype in REDUCED}
"""The dtypes that others are computed in."""
