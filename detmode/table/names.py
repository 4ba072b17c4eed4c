"""Operators by name: what a name means here, and which one may have been meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverload, OpOverloadPacket

Operator: TypeAlias = str | OpOverload | OpOverloadPacket
"""How people name an operator: by text, or as they find it in ``torch.ops``."""

Overrides: TypeAlias = (
    Mapping[str, str]
    | Mapping[OpOverload, str]
    | Mapping[OpOverloadPacket, str]
    | Mapping[Operator, str]
)
"""Operators to actions; a mapping's keys have one type, so that each kind is named."""


def text_of(operator: Any) -> Any:
    """The name of an operator of ``torch.ops``; anything else is given back as it is."""
    if isinstance(operator, OpOverload):
        return overload_name(operator)
    if isinstance(operator, OpOverloadPacket):
        return operator._qualified_op_name
    return operator


def overload_name(func: OpOverload) -> str:
    """``"aten::put_.default"``."""
    return f"{func._schema.name}.{func._overloadname}"


def overloads_of(op: str) -> list[str]:
    """The overloads of an operator by name; none where no loaded library has it."""
    namespace, _, name = op.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.partition(".")[0], None)
    return packet.overloads() if isinstance(packet, OpOverloadPacket) else []


def registered(namespace: str) -> list[str]:
    """The names ``"namespace::name.overload"`` of all operators that are loaded, or none."""
    return [
        name if "." in name else f"{name}.default"
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith(f"{namespace}::")
    ]


def misnamed(op: str) -> str | None:
    """Why ``op`` names no overload, with the name that is near; ``None`` where it may.

    ``"aten::index_add"`` means ``.default``. A namespace of which nothing is loaded may yet be.
    """
    base, _, overload = op.partition(".")
    overloads = overloads_of(op)
    if (overload or "default") in overloads:
        return None
    if overloads:
        return f"{base!r} has no overload {overload or 'default'!r}; it has {', '.join(overloads)}"
    loaded = {name.partition(".")[0] for name in registered(base.partition("::")[0])}
    return f"no loaded library has {base!r}{near(base, loaded)}" if loaded else None


def near(name: str, candidates: Iterable[str]) -> str:
    """A question after the operator that is meant, where a candidate is near; or nothing."""
    base = name.partition(".")[0]
    full = base if "::" in base else f"aten::{base}"
    found = difflib.get_close_matches(full, sorted(candidates), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def names_of(func: OpOverload, ops: Iterable[str]) -> tuple[str, ...]:
    """All names by which people may mean ``func``: of the operator, the overload and the rule."""
    names = [func._schema.name, overload_name(func)]
    for op in ops:
        names += [op, op.partition(".")[0]]
    return tuple(dict.fromkeys(names))


def matches(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Whether one of ``names`` matches one of the globs ``patterns``."""
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)
