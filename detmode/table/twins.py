"""Twins: operators that stand for listed ones in compiled graphs, and carry the user's line.

A twin has the schema of its original and one more argument, ``site``; of an in-place operator it
returns nothing. PyTorch's compiler knows nothing else about it, so it neither decomposes nor fuses
it, and calls it as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from detmode.table.variants import variant_of

NAMESPACE = "detmode_twin"
SITE = "site"
"""The argument that says where the user's code makes the call."""

_SEPARATOR = "__of__"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_names: set[str] = set()
_twins: dict[torch._ops.OpOverload, torch._ops.OpOverload] = {}


def _leave_to_original(*call: Any) -> Any:
    return NotImplemented


receive: Callable[..., Any] = _leave_to_original
"""Returns the result of a call that no dispatch mode receives, given the twin and its arguments;
``NotImplemented`` leaves it to the original. A mode above this folder sets it."""


def twin_of(func: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """Return the twin of an overload, which is defined at the first call."""
    twin = _twins.get(func)
    if twin is None:
        namespace, _, name = func._schema.name.partition("::")
        name = _SEPARATOR.join((namespace, name, func._overloadname))
        _names.add(name)
        # A CUDA graph replays kernels alone: its calls would be neither counted nor decided on.
        tags = (torch.Tag.cudagraph_unsafe,)
        _library.define(f"{name}{_schema_with_site(func)}", tags=tags)

        def original(*args: Any, site: str, **kwargs: Any) -> Any:
            result = func(*args, **kwargs)
            return None if variant_of(func) == "inplace" else result

        def received(*args: Any, **kwargs: Any) -> Any:
            result = receive(_twins[func], args, kwargs)
            # Outside of a mode a twin is its original.
            return original(*args, **kwargs) if result is NotImplemented else result

        _library.impl(name, received, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", original, lib=_library)
        twin = getattr(getattr(torch.ops, NAMESPACE), name).default
        _twins[func] = twin
    return twin


class _Twins(torch._ops._OpNamespace):
    """``torch.ops.detmode_twin``; code from the compiler's caches names twins not yet made."""

    # The compiler writes it into its code, to find the operator again.
    __module__ = torch._ops._OpNamespace.__module__

    def __getattr__(self, name: str) -> Any:
        if name.count(_SEPARATOR) == 2 and name not in _names:
            twin_of(_named(name))
            return vars(self)[name]
        return super().__getattr__(name)


setattr(torch.ops, NAMESPACE, _Twins(NAMESPACE))


def original_of(func: Any) -> torch._ops.OpOverload | None:
    """Return the operator that a twin stands for; ``None`` if ``func`` is no twin."""
    if getattr(func, "namespace", None) != NAMESPACE:
        return None
    return _named(func._schema.name.partition("::")[2])


def _named(name: str) -> torch._ops.OpOverload:
    namespace, operator, overload = name.split(_SEPARATOR)
    twin: torch._ops.OpOverload = getattr(
        getattr(getattr(torch.ops, namespace), operator), overload
    )
    return twin


def _schema_with_site(func: torch._ops.OpOverload) -> str:
    schema = func._schema
    text = re.fullmatch(r"[^(]*(\(.*\)) -> (.*)", str(schema))
    assert text is not None
    arguments, returns = text[1][1:-1], text[2]
    if not any(argument.kwarg_only for argument in schema.arguments):
        arguments += ", *" if arguments else "*"
    return f"({arguments}, str {SITE}) -> {'()' if variant_of(func) == 'inplace' else returns}"
