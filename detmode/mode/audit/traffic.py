"""The fewest bytes that a call can move: its inputs read once and its outputs written once."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from detmode.bits.effects import effects_of
from detmode.cuda.memory import COMPONENTS
from detmode.process.arguments import tensors_in

_OVERLOADS = 1 << 13

# Operators that touch as many elements of their first tensor as the largest other one has.
_CHOOSING = frozenset(
    f"aten::{name}"
    for name in (
        "_index_put_impl_",
        "_unsafe_index",
        "embedding",
        "gather",
        "index",
        "index_add_",
        "index_copy_",
        "index_put_",
        "index_reduce_",
        "index_select",
        "nll_loss2d_forward",
        "nll_loss_forward",
        "put_",
        "scatter_",
        "scatter_add_",
        "scatter_reduce_",
        "take",
    )
)


@functools.lru_cache(_OVERLOADS)
def _parts_of(func: torch._ops.OpOverload) -> tuple[list[str], list[bool], bool]:
    """Return the arguments that an overload reads, which results are new, and if any data moves.

    Operators that read no data are views, allocations, and queries of shapes and strides.
    """
    schema, effects = func._schema, effects_of(func)
    read = [
        argument.name
        for argument in schema.arguments
        if not (
            effects.reads_no_data
            or argument.is_out
            or (effects.overwrites and effects.writes(argument.name))
        )
    ]
    gives_tensors = any("Tensor" in str(result.type) for result in schema.returns)
    moves = not (
        func.is_view
        or schema.name == "aten::_unsafe_view"
        or effects.allocates
        or torch.Tag.inplace_view in func.tags
        or not (gives_tensors or schema.is_mutable or torch.Tag.data_dependent_output in func.tags)
    )
    return read, [result.alias_info is None for result in schema.returns], moves


def bytes_moved(
    func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> int:
    """Return the fewest bytes that a finished call can have moved.

    Every tensor argument counts as read, whether or not the kernel needs it; an expanded tensor
    counts the elements that it has in memory. An in-place operator reads and writes its tensor.
    """
    names, are_new, moves = _parts_of(func)
    if not moves:
        return 0
    effects = effects_of(func)
    bound = effects.signature.bind(args, kwargs)
    read = tensors_in(bound[name] for name in names)
    results = result if len(are_new) > 1 else (result,)
    new_tensors = tensors_in(value for is_new, value in zip(are_new, results) if is_new)
    written = effects.written(args, kwargs)
    if func._schema.name not in _CHOOSING:
        return sum(map(size_of, [*read, *written, *new_tensors]))
    first, others = read[0], [*read[1:], *new_tensors]
    touched = max((tensor.numel() for tensor in others), default=0) * first.itemsize
    # One read, and one write if it is written in place.
    passes = 1 + sum(tensor is first for tensor in written)
    return passes * min(size_of(first), touched) + sum(map(size_of, others))


def size_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements in memory; an expanded dimension counts once."""
    if tensor.is_nested:
        # It has no shape and no strides.
        return tensor.numel() * tensor.itemsize
    if tensor.layout is torch.strided:
        held = (size for size, step in zip(tensor.shape, tensor.stride()) if step or not size)
        return math.prod(held) * tensor.itemsize
    # None of a layout that hides its parts.
    return sum(size_of(getattr(tensor, name)()) for name in COMPONENTS.get(tensor.layout, ()))
