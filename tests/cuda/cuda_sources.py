"""The sources that several test modules launch."""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda import Source, accumulator_buffers, ctype, launch

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COMPLEX = (torch.complex64, torch.complex128)
INTEGRAL = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

KERNELS = Source(
    __file__,
    "kernels.cu",
    entries=(
        *(f"scale<{ctype(dtype)}>" for dtype in FLOATING),
        "naive_scatter<float>",
        "reverse_in_shared",
        *(
            f"accumulate_{part}<{ctype(dtype)}>"
            for dtype in FLOATING + COMPLEX
            for part in ("keys", "sums", "finish")
        ),
    ),
)


FAULTS = Source(
    __file__,
    "faults.cu",
    entries=(
        "write_after",
        "write_before",
        "write_const",
        "write_shared",
        "read_after",
        "read_shared",
        "read_shared_of<float>",
        "forget",
        "barrier_some",
        "barrier_returned",
        "barrier_two",
        "shuffle_some",
        "shuffle_mask",
        "assert_small",
        "null_write",
        "divide_by_zero",
        "overflow_stack",
        "endless",
    ),
)

WARP = Source(
    __file__,
    "warp.cu",
    entries=(
        "warp_operations",
        "block_operations",
        "coordinates",
        "tickets",
        "lost_update",
        "kinds",
        "by_value",
    ),
)

PRIMITIVES = Source(
    __file__,
    "primitives.cu",
    entries=(
        "row_sum<float, 32>",
        "row_sum<float, 256>",
        "row_sum<double, 96>",
        "row_sum<complex<float>, 64>",
        "reduce_in_order<32>",
        "reduce_in_order<96>",
        "reduce_in_order<1024>",
        "segment_sum<float, 8>",
        "segment_sum<double, 64>",
        "elect",
        "from_float<half>",
        "from_float<bfloat16>",
        "to_float<half>",
        "to_float<bfloat16>",
        "quick_divisions",
        "divisions",
        *(f"extremes<{ctype(dtype)}>" for dtype in FLOATING),
        *(
            f"extremes<{name}>"
            for name in ("bool", "uint8_t", "int8_t", "int16_t", "int32_t", "int64_t")
        ),
        "rounding<float>",
        "rounding<double>",
        "quotients<int32_t>",
        "quotients<int64_t>",
        "divided_sums<float>",
        "divided_sums<double>",
        "compensated<float>",
        "compensated<double>",
        "chosen<float, 1, int64_t>",
        "chosen<float, 3, int64_t>",
        "chosen<float, 3, int32_t>",
    ),
)

REDUCTIONS = Source(
    __file__,
    "reductions.cu",
    entries=tuple(
        f"{kernel}<{ctype(dtype)}>"
        for kernel in ("row_product", "radix_keys", "extremum_observe", "extremum_finish")
        for dtype in FLOATING + INTEGRAL
    ),
)

ALL = (KERNELS, FAULTS, WARP, PRIMITIVES, REDUCTIONS)


def accumulate(output: Tensor, index: Tensor, source: Tensor, headroom: int) -> Tensor:
    """A new tensor: `output` where `index` names no element, elsewhere the sums of `source`."""
    name = ctype(source.dtype)
    n, count = output.numel(), source.numel()
    keys, sums = accumulator_buffers(n, source.dtype, source.device)
    result = output.clone()
    launch(
        KERNELS, f"accumulate_keys<{name}>", count, source=source, index=index, keys=keys, n=count
    )
    launch(
        KERNELS, f"accumulate_sums<{name}>", count,
        source=source, index=index, keys=keys, sums=sums, n=count, headroom=headroom,
    )  # fmt: skip
    launch(
        KERNELS, f"accumulate_finish<{name}>", n,
        keys=keys, sums=sums, output=result, n=n, headroom=headroom,
    )  # fmt: skip
    return result


def pattern(tensor: Tensor) -> bytes:
    """The tensor's bytes, so that NaNs and signed zeros compare too."""
    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()
