"""In-place and ``out=`` variants, recognised by schema."""

from __future__ import annotations

from functools import cache

import torch


@cache
def variant_of(func: torch._ops.OpOverload) -> str:
    """Return ``"functional"``, ``"inplace"`` or ``"out"`` (also for ``grad_input`` variants).

    An operator that writes to its arguments and returns new tensors is functional here: its results
    are delivered as they are.
    """
    schema = func._schema
    if any(argument.is_out for argument in schema.arguments):
        return "out"
    if schema.is_mutable and all(result.alias_info for result in schema.returns):
        return "inplace"
    return "functional"


def functional_signature(func: torch._ops.OpOverload) -> tuple[tuple[str, str], ...]:
    """Return names and types of all arguments except ``out``, equal for variants of one op."""
    return tuple(
        (argument.name, str(argument.type))
        for argument in func._schema.arguments
        if not argument.is_out
    )
