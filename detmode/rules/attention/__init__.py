"""Backward of fused attention: flash, memory-efficient and cuDNN, and compiled ``flex_attention``.

On CUDA, ``F.scaled_dot_product_attention`` chooses one of them or multiplies matrices. The forward
does not vary.

## What varies

Blocks of keys add their part of the gradient of the queries with a float ``atomicAdd``. Compiled
``flex_attention`` gathers the gradients of queries, keys and values in a fixed order; to the
gradient of a tensor that its ``score_mod`` captures, such as a learned bias, it adds with a float
``atomicAdd``, whatever PyTorch's flag says.

## What happens instead

Flash and memory-efficient attention have a deterministic form, which the flag selects in strict
mode only: under ``warn_only`` PyTorch warns once and lets it vary. detmode runs the strict form in
both. cuDNN's backward has none. Under the strict flag ``scaled_dot_product_attention`` does not
choose it; a direct call varies silently, and detmode warns in its own words. It also warns about
the atomics of ``flex_attention``, under the name ``detmode::flex_attention_backward``.

## Cost

Flash: one buffer of the queries' gradient for each split of the keys, and their sum.
Memory-efficient: the keys are not split, which leaves less parallel work.

## Limits

Neither cuDNN's backward nor that of ``flex_attention`` has a substitute: run ``flex_attention``
without ``torch.compile``, or compute the bias without capturing a tensor that needs a gradient.
``BACKEND="FLASH"`` of ``flex_attention`` follows PyTorch's flag.
``_efficient_attention_backward`` with ``num_splits_key`` above 1 raises
under the flag, as in PyTorch.
"""

from detmode.table.chain import chain
from detmode.table.conditions import on
from detmode.table.markers import FLEX_ATTENTION_BACKWARD
from detmode.table.rule import RUN_TO_RUN, Native, Refuse

_STRICT = (
    "aten::_flash_attention_backward",
    "aten::_efficient_attention_backward",
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_efficient_attention_backward",
)
_CUDNN = (
    "aten::_cudnn_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention_backward",
)
_ELSEWHERE = "these kernels run on CUDA tensors only"

# Of ATen's own code, only this looks at warn_only, besides that of alerts.
READS_WARN_ONLY = _STRICT + _CUDNN

RULES = (
    *chain(
        _STRICT,
        when=on("cuda"),
        action=Native(),
        guarantee=RUN_TO_RUN,
        because="in strict mode the parts of a query's gradient are added in order",
        otherwise=_ELSEWHERE,
    ),
    *chain(
        _CUDNN,
        when=on("cuda"),
        action=Refuse(),
        because="cuDNN adds the parts of a query's gradient in no fixed order",
        otherwise=_ELSEWHERE,
    ),
    *chain(
        FLEX_ATTENTION_BACKWARD,
        when=on("cuda"),
        action=Refuse(),
        because="compiled code adds to the gradients of captured tensors by atomicAdd",
        otherwise="compiled code for other devices has no backward",
    ),
)

# Their backward does not carry their name.
FORWARDS = (
    "aten::_flash_attention_forward",
    "aten::_efficient_attention_forward",
    "aten::_cudnn_attention_forward",
)

# What scaled_dot_product_attention calls on CPU and meta tensors: fused, and in parts.
_ON_CUDA = tuple(op for op in (*_STRICT, *_CUDNN) if "scaled_dot_product" in op)
STANDS_FOR = {
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _ON_CUDA,
    "aten::_safe_softmax": _ON_CUDA,
}
