"""Mixtures of experts in vLLM and SGLang: ``moe_align_block_size``, ``moe_wna16_gemm``.

The rows have no effect until vLLM or sgl-kernel is imported.

## What varies

``moe_wna16_gemm`` splits a product along its inner dimension, and the parts add to one result by
``atomicAdd``, in half precision; ``moe_wna16_marlin_gemm`` does so with ``use_atomic_add``.
``moe_align_block_size`` gives the tokens of an expert places by an atomic counter: their order
varies, the tokens of an expert do not.

## What happens instead

detmode warns in its own words. ``moe_wna16_marlin_gemm`` without ``use_atomic_add`` adds its parts
in the order of a lock, and is allowed.

## Cost

None: no other kernel runs.

## Limits

Names are taken from the sources of vLLM and sgl-kernel of 2025; the tests check the rows against
these names, without the packages. For fewer than 1024 assignments to at most 64 experts
``moe_align_block_size`` orders tokens by threads, without a counter; a call does not say so. A
product that treats its rows alike gives a token the same bits in any place: where that is so, use
``detmode.allow("_moe_C::moe_align_block_size")``. The Triton kernels of ``fused_moe`` have one
program for each result.
"""

from detmode.table.chain import chain
from detmode.table.conditions import argument, on
from detmode.table.rule import Refuse

_ELSEWHERE = "the kernels run on CUDA tensors only"
PLACING = (
    "_moe_C::moe_align_block_size",
    "_moe_C::sgl_moe_align_block_size",
    "sgl_kernel::moe_align_block_size",
)
MARLIN = ("_moe_C::moe_wna16_marlin_gemm", "sgl_kernel::moe_wna16_marlin_gemm")

RULES = (
    *chain(
        PLACING,
        when=on("cuda"),
        action=Refuse(),
        because="an atomic counter gives the tokens of an expert their places",
        otherwise=_ELSEWHERE,
    ),
    *chain(
        "_moe_C::moe_wna16_gemm",
        when=on("cuda"),
        action=Refuse(),
        because="parts of the inner dimension add to a result by atomicAdd",
        otherwise=_ELSEWHERE,
    ),
    *chain(
        MARLIN,
        when=on("cuda") & argument("use_atomic_add", True),
        action=Refuse(),
        because="parts of the inner dimension add to a result by atomicAdd",
        otherwise="the parts are added in the order of a lock",
    ),
)
