"""Backward of xFormers' memory-efficient attention: ``xformers.ops.memory_efficient_attention``.

The rows have no effect until xFormers is imported. Where it calls PyTorch's copies of the kernels,
the family ``attention`` has the rows.

## What varies

Blocks of keys add their part of the gradient of the queries with a float ``atomicAdd``.
``flash_bwd`` calls flash-attn with ``deterministic=False``, and the CUTLASS kernel splits the keys.

## What happens instead

detmode warns in its own words. xFormers has no argument that chooses the deterministic form.

## Cost

None: no other kernel runs.

## Limits

Names are taken from xFormers' sources of 2023 to 2025; the tests check the rows against these
names, without the package. Its newer builds with flash-attn-3 read PyTorch's flag in
``xformers_flash3::flash_bwd``; a call does not say whether the build does, and detmode warns.
``F.scaled_dot_product_attention`` has a deterministic backward.
"""

from detmode.table.chain import chain
from detmode.table.conditions import on
from detmode.table.rule import Refuse

OPS = (
    "xformers_flash::flash_bwd",
    "xformers_flash3::flash_bwd",
    "xformers::efficient_attention_backward_cutlass",
)

RULES = chain(
    OPS,
    when=on("cuda"),
    action=Refuse(),
    because="blocks of keys add to the gradient of the queries with a float atomicAdd",
    otherwise="the kernels run on CUDA tensors only",
)

FORWARDS = (
    "xformers_flash::flash_fwd",
    "xformers_flash3::flash_fwd",
    "xformers::efficient_attention_forward_cutlass",
)
