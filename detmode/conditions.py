"""Named predicates over one bound call. They print as they are written, and join with ``&``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from detmode.call import Call

REDUCED = (torch.float16, torch.bfloat16)
FLOATING = (*REDUCED, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
INTEGRAL = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_NAMES = {REDUCED: "REDUCED", FLOATING: "FLOATING", COMPLEX: "COMPLEX", INTEGRAL: "INTEGRAL"}
_NAMES[FLOATING + COMPLEX] = "FLOATING + COMPLEX"


@dataclass(frozen=True)
class Condition:
    """A predicate over a :class:`~detmode.call.Call` that knows its own text.

    Equality is by text, so that two rows with the same condition can be told.

    Args:
        text: how the condition prints: the expression that makes it.
        holds: the predicate itself.
        arguments: the schema names that the predicate reads.
    """

    text: str
    holds: Callable[[Call], bool]
    arguments: tuple[str, ...] = ()

    def __call__(self, call: Call) -> bool:
        """Whether the condition holds for a call."""
        return self.holds(call)

    def __and__(self, other: Condition) -> Condition:
        first, second = self.holds, other.holds
        return Condition(
            f"{self.text} & {other.text}",
            lambda call: first(call) and second(call),
            self.arguments + other.arguments,
        )

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


ALWAYS = Condition("always", lambda call: True)
"""The condition of a chain's last row."""


def on(*device_types: str) -> Condition:
    """The call has a tensor on one of ``device_types``, or makes one there."""
    text = ", ".join(repr(device) for device in device_types)
    if len(device_types) == 1:
        wanted = device_types[0]
        return Condition(f"on({text})", lambda call: wanted in call.device_types)
    return Condition(f"on({text})", lambda call: not call.device_types.isdisjoint(device_types))


def requires_grad(name: str) -> Condition:
    """The tensor argument ``name`` requires grad, and grad mode is on."""

    def holds(call: Call) -> bool:
        tensor = call.arguments.get(name)
        return isinstance(tensor, torch.Tensor) and tensor.requires_grad and torch.is_grad_enabled()

    return Condition(f"requires_grad({name!r})", holds, (name,))


def dtype_in(name: str, dtypes: Iterable[torch.dtype]) -> Condition:
    """The tensor argument ``name`` has one of ``dtypes``."""
    dtypes = tuple(dtypes)
    text = _NAMES.get(dtypes) or "[" + ", ".join(str(dtype) for dtype in dtypes) + "]"

    def holds(call: Call) -> bool:
        tensor = call.arguments.get(name)
        return isinstance(tensor, torch.Tensor) and tensor.dtype in dtypes

    return Condition(f"dtype_in({name!r}, {text})", holds, (name,))


def argument(name: str, *values: object) -> Condition:
    """The argument ``name`` equals one of ``values``."""
    text = ", ".join(repr(value) for value in values)
    return Condition(
        f"argument({name!r}, {text})", lambda call: call.arguments.get(name) in values, (name,)
    )


def argument_given(name: str) -> Condition:
    """The optional argument ``name`` is not ``None``."""
    return Condition(
        f"argument_given({name!r})", lambda call: call.arguments.get(name) is not None, (name,)
    )


def nonempty(name: str) -> Condition:
    """The tensor argument ``name`` has elements."""

    def holds(call: Call) -> bool:
        tensor = call.arguments.get(name)
        return isinstance(tensor, torch.Tensor) and tensor.numel() > 0

    return Condition(f"nonempty({name!r})", holds, (name,))


def quantized(name: str) -> Condition:
    """The tensor argument ``name`` is quantized."""

    def holds(call: Call) -> bool:
        tensor = call.arguments.get(name)
        return isinstance(tensor, torch.Tensor) and tensor.is_quantized

    return Condition(f"quantized({name!r})", holds, (name,))


def sparse(name: str) -> Condition:
    """The tensor argument ``name`` has a sparse layout (COO, CSR, CSC, BSR or BSC)."""

    def holds(call: Call) -> bool:
        tensor = call.arguments.get(name)
        return isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided

    return Condition(f"sparse({name!r})", holds, (name,))


def lies_along(name: str, dim: str) -> Condition:
    """All elements of the tensor argument ``name`` lie along its dimension ``dim``."""

    def holds(call: Call) -> bool:
        tensor, axis = call.arguments.get(name), call.arguments.get(dim)
        if not isinstance(tensor, torch.Tensor) or not isinstance(axis, int):
            return False
        if tensor.numel() <= 1 or not -tensor.dim() <= axis < tensor.dim():
            return False
        return tensor.shape[axis] == tensor.numel()

    return Condition(f"lies_along({name!r}, {dim!r})", holds, (name, dim))


def deterministic_flag(value: bool) -> Condition:
    """PyTorch's flag is ``value`` at the time of the call (a program can turn it off inside)."""
    return Condition(
        f"deterministic_flag({value})",
        lambda call: torch.are_deterministic_algorithms_enabled() is value,
    )


def fill_uninitialized_memory(value: bool) -> Condition:
    """``torch.utils.deterministic.fill_uninitialized_memory`` is ``value``."""
    return Condition(
        f"fill_uninitialized_memory({value})",
        lambda call: torch._C._get_deterministic_fill_uninitialized_memory() is value,
    )
