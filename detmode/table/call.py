"""One aten call with its arguments by schema name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from detmode.table.call_site import CallSite


class Signature:
    """The names and defaults of an ``OpOverload``'s arguments, read from its schema once."""

    __slots__ = ("defaults", "names")

    def __init__(self, func: torch._ops.OpOverload) -> None:
        arguments = func._schema.arguments
        self.names = tuple(argument.name for argument in arguments)
        # An argument without a default is None until the call gives it.
        self.defaults = {argument.name: argument.default_value for argument in arguments}

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
        """``args`` and ``kwargs`` as one dict by schema name, defaults filled, in schema order."""
        bound = self.defaults.copy()
        bound.update(zip(self.names, args))
        if kwargs:
            bound.update(kwargs)
        return bound


class Call:
    """An ``OpOverload`` and its bound arguments, as the conditions see them.

    Args:
        func: the overload that was called.
        arguments: by schema name, defaults filled.
        pretend: a device type; CPU and meta tensors then count as tensors on that device.
    """

    __slots__ = ("arguments", "device_types", "func", "place", "pretend", "tensors")

    def __init__(
        self, func: torch._ops.OpOverload, arguments: dict[str, Any], pretend: str | None = None
    ) -> None:
        self.func = func
        self.arguments = arguments
        self.pretend = pretend
        self.place: CallSite | None = None
        """Where it is made, once that has been looked up."""
        self.tensors = tensors_in(arguments.values())
        """All tensor arguments, those in lists too."""
        self.device_types: set[str] = set()
        """The device types of the tensor arguments; without any, of the tensor to be made."""
        for tensor in self.tensors:
            # The properties are several times quicker than tensor.device.type.
            if tensor.is_cuda:
                self.device_types.add("cuda")
            elif tensor.is_cpu:
                self.device_types.add(pretend or "cpu")
            elif tensor.is_meta:
                self.device_types.add(pretend or "meta")
            else:
                self.device_types.add(tensor.device.type)
        if not self.tensors:
            device = arguments.get("device")
            made_on = torch.device(device).type if device else "cpu"
            if pretend is not None and made_on in ("cpu", "meta"):
                made_on = pretend
            self.device_types.add(made_on)


_SCALARS = frozenset({int, float, bool, str, type(None)})


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among ``values``, and in lists and tuples among them, nested ones too."""
    found = []
    for value in values:
        # isinstance is slow for what is no tensor.
        if type(value) in _SCALARS:
            continue
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found
