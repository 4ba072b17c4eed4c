"""The arguments of a call: by the names of its schema, and the tensors among them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import torch

_TYPE = re.compile(r"\w+")
_WITHOUT_TENSORS = frozenset(
    {"bool", "complex", "float", "int", "number", "str", "Device", "Generator", "List", "Optional"}
)
"""The words in a schema's types that say nothing of a tensor."""
_OVERLOADS = 1 << 13


class Signature:
    """The names and defaults of an ``OpOverload``'s arguments, read from its schema once.

    Attributes:
        func: the overload.
        names: in order.
        out_names: those of its ``out`` arguments, in the order of the results.
        defaults: by name; ``None`` for an argument without one.
        tensors: the names of those that may be or hold tensors.
        positional: binds the positional ones of a call, as :meth:`bind` does.
    """

    __slots__ = ("defaults", "func", "names", "out_names", "positional", "tensors")

    def __init__(self, func: torch._ops.OpOverload) -> None:
        arguments = func._schema.arguments
        self.func = func
        self.names = tuple(argument.name for argument in arguments)
        self.out_names = tuple(argument.name for argument in arguments if argument.is_out)
        # An argument without a default is None until the call gives it.
        self.defaults = {argument.name: argument.default_value for argument in arguments}
        self.tensors = tuple(
            argument.name
            for argument in arguments
            if not _WITHOUT_TENSORS.issuperset(_TYPE.findall(str(argument.type)))
        )
        # Python binds them, sooner than a copy of the defaults could be filled. The names of the
        # schema are no parameters: some are Python's keywords.
        taken = ", ".join(f"a{i}=defaults[{name!r}]" for i, name in enumerate(self.names))
        items = ", ".join(f"{name!r}: a{i}" for i, name in enumerate(self.names))
        self.positional: Callable[..., dict[str, Any]] = eval(
            f"lambda {taken}: {{{items}}}", {"defaults": self.defaults}
        )

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
        """``args`` and ``kwargs`` as one dict by schema name, defaults filled, in schema order."""
        bound = self.positional(*args)
        if kwargs:
            bound.update(kwargs)
        return bound


@lru_cache(_OVERLOADS)
def signature_of(func: torch._ops.OpOverload) -> Signature:
    """Return an overload's signature, read once for all modes: that is most of a first call."""
    return Signature(func)


SCALARS = frozenset({int, float, bool, str, type(None)})
"""Types of arguments that are no tensors; ``isinstance`` is slow for those."""


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among ``values``, and in lists and tuples among them, nested ones too."""
    tensors = []
    for value in values:
        kind = type(value)
        if kind in SCALARS:
            continue
        # The quickest first.
        if kind is torch.Tensor:
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += tensors_in(value)
        elif isinstance(value, torch.Tensor):
            tensors.append(value)
    return tensors
