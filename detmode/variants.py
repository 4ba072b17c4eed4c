"""In-place and ``out=`` variants: told from the schema, and served by the functional substitute."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from detmode.rule import Substitute


@cache
def variant_of(func: torch._ops.OpOverload) -> str:
    """``"functional"``, ``"inplace"`` or ``"out"`` (``grad_input`` and named outputs too)."""
    schema = func._schema
    if any(argument.is_out for argument in schema.arguments):
        return "out"
    if schema.is_mutable:
        return "inplace"
    return "functional"


def functional_signature(func: torch._ops.OpOverload) -> tuple[tuple[str, str], ...]:
    """Names and types of all arguments but the ``out`` ones: equal for the variants of one op."""
    return tuple(
        (argument.name, str(argument.type))
        for argument in func._schema.arguments
        if not argument.is_out
    )


@cache
def out_names(func: torch._ops.OpOverload) -> tuple[str, ...]:
    """The names of the ``out`` arguments, in the order of the results."""
    return tuple(argument.name for argument in func._schema.arguments if argument.is_out)


def run_substitute(
    action: Substitute, func: torch._ops.OpOverload, arguments: dict[str, Any]
) -> Any:
    """Call a substitute for ``func`` and deliver the result as the variant does.

    Args:
        action: its function takes the functional operator's arguments; with a keyword ``out`` it
            writes there.
        func: the overload that was called.
        arguments: by schema name, ``out`` arguments included.

    Raises:
        RuntimeError: an ``out`` tensor has a dtype that the result cannot be written to, or several
            elements of a tensor that is written share memory: which of them stays would vary.
    """
    function, variant = action.function, variant_of(func)
    if variant == "functional":
        return function(**arguments)
    names = ("self",) if variant == "inplace" else out_names(func)
    targets = [arguments[name] for name in names]
    if arguments.get("dtype", ...) is None:
        # Reductions and scans take the dtype of the tensor that they write.
        arguments = {**arguments, "dtype": targets[0].dtype}
    if variant == "inplace":
        _check_written(targets[0])
        if action.takes_out:
            function(**arguments, out=targets[0])
        else:
            targets[0].copy_(_cast(function(**arguments), targets[0]))
        return targets[0]
    results = function(**{name: arguments[name] for name in arguments if name not in names})
    results = results if isinstance(results, tuple) else (results,)
    for target, result in zip(targets, results):
        if target.shape != result.shape or target.device != result.device:
            # Resizes, with ATen's warning and checks.
            torch.ops.aten.clone.out(_cast(result, target), out=target)
        else:
            _check_written(target)
            target.copy_(_cast(result, target))
    return targets[0] if len(targets) == 1 else tuple(targets)


def _check_written(target: torch.Tensor) -> None:
    """Refuse a tensor whose elements share memory: ATen's kernels see expanded ones only."""
    if not target.is_contiguous() and _shares_memory(target.shape, target.stride()):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location. Please clone() the tensor before performing the operation."
        )


def _shares_memory(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements of a tensor that is not empty have one address."""
    reach = 0
    for stride, size in sorted(zip(strides, shape)):
        if size > 1 and stride <= reach:
            break
        reach += stride * (size - 1)
    else:
        return False
    # Interleaved strides, from as_strided: each address is looked at.
    with _disable_current_modes():
        offsets = torch.zeros(1, dtype=torch.int64, device="cpu")
        for stride, size in zip(strides, shape):
            steps = torch.arange(size, device="cpu") * stride
            offsets = (offsets[:, None] + steps).flatten()
        distinct: int = offsets.unique().numel()
    return distinct < offsets.numel()


def _cast(result: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if not torch.can_cast(result.dtype, target.dtype):
        raise RuntimeError(
            f"result type {result.dtype} can't be cast to the desired output type {target.dtype}"
        )
    return result.to(target.dtype)
