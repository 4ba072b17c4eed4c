"""One call of an operator: its arguments by schema name, its tensors, and where it runs."""

from __future__ import annotations

from typing import Any

import torch

from detmode.process.arguments import Signature, tensors_in

_TENSOR = torch.Tensor


class Call:
    """A call of an overload, as conditions see it.

    Args:
        signature: the overload's.
        args: the positional arguments, as they were given.
        kwargs: the others, as they were given.
        pretend: a device type; CPU and meta tensors then count as tensors on that device.
        traced: true if nothing is to be launched for the call.

    Attributes:
        arguments: by schema name, defaults filled.
        tensors: all tensor arguments, those in lists too.
        device_types: those of the tensor arguments; without any, of the tensor to be made.
        launches_on: ``"cuda"`` or ``"cpu"``; ``None`` if the tensors have no data to run on. Of a
            call that makes the first tensor, where it does.
    """

    __slots__ = (
        *("args", "arguments", "device_types", "kwargs", "launches_on", "signature"),
        "tensors",
    )

    def __init__(
        self,
        signature: Signature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        pretend: str | None = None,
        traced: bool = False,
    ) -> None:
        # Each listed call passes through here, most with one tensor: nothing is called that need
        # not be.
        arguments = signature.positional(*args)
        if kwargs:
            arguments.update(kwargs)
        tensors: list[torch.Tensor] = []
        for name in signature.tensors:
            value = arguments[name]
            kind = type(value)
            if kind is _TENSOR:
                tensors.append(value)
            elif value is not None:
                tensors += tensors_in(value if kind is list else (value,))
        device_types: set[str] = set()
        launches_on = "cpu"
        for tensor in tensors:
            # The properties are several times quicker than tensor.device.type.
            if tensor.is_cuda:
                device_types.add("cuda")
                launches_on = "cuda"
            elif tensor.is_cpu:
                device_types.add(pretend or "cpu")
            elif tensor.is_meta:
                device_types.add(pretend or "meta")
                traced = True
            else:
                device_types.add(tensor.device.type)
        if not tensors:
            made_on = _made_on(arguments.get("device"))
            # What makes no tensor either has nothing to run on.
            traced = traced or made_on not in _LAUNCHING or "device" not in arguments
            launches_on = made_on
            device_types.add(pretend if pretend and made_on in ("cpu", "meta") else made_on)
        self.signature = signature
        self.args = args
        self.kwargs = kwargs
        self.arguments = arguments
        self.tensors = tensors
        self.device_types = device_types
        self.launches_on = None if traced else launches_on

    @property
    def func(self) -> torch._ops.OpOverload:
        """The overload that is called."""
        return self.signature.func


_LAUNCHING = ("cpu", "cuda")
"""The types of devices on which substitutes run."""


def _made_on(device: Any) -> str:
    return torch.device(device).type if device else "cpu"
