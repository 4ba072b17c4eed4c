"""Operators by name: resolving names, and suggesting the nearest one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, TypeVar

import torch
from torch._ops import OpOverload, OpOverloadPacket

from detmode.process.spelling import did_you_mean
from detmode.table.called_as import without_module
from detmode.table.outcome import ActionName

Operator: TypeAlias = str | OpOverload | OpOverloadPacket | Callable[..., Any]
"""An operator as users name it: by text, an object of ``torch.ops``, or a function of PyTorch."""

K = TypeVar("K", bound=Operator)

Overrides: TypeAlias = Mapping[K, ActionName] | Mapping[Operator, ActionName]
"""Operators to actions. Mappings are invariant in their key: ``K`` is one kind of operator."""


def text_of(operator: Any) -> Any:
    """Return the name of an operator of ``torch.ops``; return anything else unchanged."""
    if isinstance(operator, OpOverload):
        return overload_name(operator)
    if isinstance(operator, OpOverloadPacket):
        return operator._qualified_op_name
    return operator


def overload_name(func: OpOverload) -> str:
    """Return a name such as ``"aten::put_.default"``."""
    return f"{func._schema.name}.{func._overloadname}"


def overloads_of(op: str) -> list[str]:
    """Return the overloads of an operator by name; empty if no loaded library has it."""
    namespace, _, name = op.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.partition(".")[0], None)
    return packet.overloads() if isinstance(packet, OpOverloadPacket) else []


def registered(namespace: str) -> list[str]:
    """Return the names ``"namespace::name.overload"`` of all loaded operators of a namespace."""
    return [
        name if "." in name else f"{name}.default"
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith(f"{namespace}::")
    ]


def misnamed(op: str) -> str | None:
    """Return why ``op`` names no overload, with the nearest name; ``None`` if it may name one.

    ``"aten::index_add"`` means ``.default``. A namespace without operators may be loaded later.
    """
    base, _, overload = op.partition(".")
    overloads = overloads_of(op)
    if (overload or "default") in overloads:
        return None
    if overloads:
        return f"{base!r} has no overload {overload or 'default'!r}; it has {', '.join(overloads)}"
    loaded = {name.partition(".")[0] for name in registered(base.partition("::")[0])}
    return f"no loaded library has {base!r}{near(base, loaded)}" if loaded else None


def near(name: str, candidates: Iterable[str], most: int = 1) -> str:
    """Return a "did you mean" question if a candidate is similar, else an empty text."""
    base = without_module(name).partition(".")[0]  # behind it comes an overload's name
    return did_you_mean(base if "::" in base else f"aten::{base}", candidates, most)


def names_of(func: OpOverload, ops: Iterable[str]) -> tuple[str, ...]:
    """Return all names that may refer to ``func``: of the operator, the overload and the rules."""
    names = [func._schema.name, overload_name(func)]
    for op in ops:
        names += [op, op.partition(".")[0]]
    return tuple(dict.fromkeys(names))


def matches(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Return whether one of ``names`` matches one of the globs ``patterns``."""
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)
