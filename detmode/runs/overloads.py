"""What a recording or a probe knows of one overload."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from detmode.call import tensors_in
from detmode.plan import overload_name

_ALLOCATIONS = frozenset(
    f"aten::{name}"
    for name in (
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_quantized",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
    )
)
"""Operators that give memory which nobody has written."""


class Overload:
    """What is known of an overload: its name, and which of its arguments it writes."""

    __slots__ = ("_positions", "allocates", "name", "seeded")

    def __init__(self, func: torch._ops.OpOverload) -> None:
        schema = func._schema
        self.name = overload_name(func)
        self.allocates = schema.name in _ALLOCATIONS
        self.seeded = torch.Tag.nondeterministic_seeded in func.tags
        self._positions = [
            (position, argument.name)
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The tensors that the call writes, in lists too."""
        if not self._positions:
            return []
        return tensors_in(
            args[position] if position < len(args) else kwargs.get(name)
            for position, name in self._positions
        )
