"""The parameters of a kernel, read from its text; they check and pack a launch's arguments."""

from __future__ import annotations

import difflib
import re
import struct
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

__all__ = ["Bound", "KernelSignature", "Parameter", "kernels_of"]

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BOUNDS = r"(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s*)?"
_KERNEL = re.compile(rf"__global__\s+{_BOUNDS}void\s+{_BOUNDS}(\w+)\s*\(([^()]*)\)")
_STRUCT = re.compile(r"struct\s+(\w+)\s*\{([^{}]*)\}\s*;")
_MEMBERS = re.compile(r"\s*(int64_t|double)\s+(\w+(?:\s*,\s*\w+)*)\s*")
_CODES = {"pointer": "Q", "int64_t": "q", "bool": "q", "double": "d"}
_PYTHON = {
    "pointer": "a Tensor or None",
    "int64_t": "an int",
    "bool": "a bool",
    "double": "a float",
}


class Parameter(NamedTuple):
    """A kernel's parameter.

    Args:
        name: as the kernel calls it.
        kind: ``"pointer"``, ``"int64_t"``, ``"bool"``, ``"double"``, or the name of a struct.
        members: of a struct, in order: name and kind, ``"int64_t"`` or ``"double"``.
    """

    name: str
    kind: str
    members: tuple[tuple[str, str], ...] = ()


def kernels_of(text: str) -> dict[str, tuple[Parameter, ...]]:
    """The parameters of every ``__global__`` function of a text whose includes are expanded.

    A parameter of another type than a launch can pass has that type as its kind.
    """
    text = _COMMENT.sub("", text)
    structs = {name: _members(body) for name, body in _STRUCT.findall(text)}
    kernels = {}
    for name, declared in _KERNEL.findall(text):
        # Commas in the arguments of a template separate no parameters.
        while "<" in declared:
            declared = re.sub(r"<[^<>]*>", "", declared)
        found = []
        for parameter in filter(None, map(str.strip, declared.split(","))):
            called = parameter.split()[-1].lstrip("*")
            kind = parameter.removesuffix(called).strip()
            kind = "pointer" if "*" in kind else kind.removeprefix("const ")
            found.append(Parameter(called, kind, structs.get(kind, ())))
        kernels[name] = tuple(found)
    return kernels


def _members(body: str) -> tuple[tuple[str, str], ...]:
    """The members of a plain struct of ``int64_t`` and ``double``; none of another one."""
    declarations = [_MEMBERS.fullmatch(line) for line in body.split(";")[:-1]]
    return tuple(
        (name.strip(), found[1])
        for found in declarations
        if found is not None and None not in declarations
        for name in found[2].split(",")
    )


Bound: TypeAlias = tuple[tuple[Any, ...], tuple[int, ...], tuple[int, ...]]
"""Values in the order of the parameters, and where among them tensors and null pointers are."""


class KernelSignature:
    """The parameters of one entry, and how its arguments lie: each from a word of 8 bytes on.

    Args:
        where: the file and the entry, for messages.
        parameters: of the kernel.

    Raises:
        ValueError: a parameter that no launch can pass.
    """

    def __init__(self, where: str, parameters: tuple[Parameter, ...]) -> None:
        self.where = where
        self.parameters = parameters
        self.offsets: list[int] = []
        """The first word of each parameter."""
        self._words: list[tuple[str, str]] = []
        for name, kind, members in parameters:
            if kind not in _CODES and not members:
                raise ValueError(
                    f"{where}: parameter {name!r} is of type {kind}; a kernel takes pointers, "
                    "int64_t, double, bool, and plain structs of int64_t and double"
                )
            self.offsets.append(len(self._words))
            self._words += [(f"{name}.{m}", k) for m, k in members] or [(name, kind)]
        self._layout = struct.Struct("=" + "".join(_CODES[kind] for _, kind in self._words))
        # The last one first: its members take more places than it has.
        self._structs = [i for i, parameter in enumerate(parameters) if parameter.members][::-1]
        self.n_words = len(self._words)
        names = [parameter.name for parameter in parameters]
        # Of one name, itemgetter gives no tuple.
        self._in_order = (
            itemgetter(*names) if len(names) > 1 else lambda a: tuple(a[n] for n in names)
        )
        self._accepted: dict[tuple[type, ...], tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def bind(self, arguments: Mapping[str, object]) -> Bound:
        """Put arguments into the order of the parameters.

        Raises:
            ValueError: a parameter without an argument, or the reverse.
            TypeError: an argument of another kind than its parameter.
        """
        try:
            values = self._in_order(arguments)
        except KeyError:
            values = ()
        if not len(values) == len(arguments) == len(self.parameters):
            self._refuse_names(arguments)
        # Types that were checked once need no second look.
        types = tuple(map(type, values))
        accepted = self._accepted.get(types)
        if accepted is None:
            accepted = self._accepted[types] = self._check(values)
        return values, accepted[0], accepted[1]

    def pack_into(self, words: Any, bound: Bound) -> None:
        """Write arguments to a buffer of 8-byte words: addresses, numbers, structs' members.

        Raises:
            ValueError: a number that its parameter cannot hold.
        """
        values, tensors, nulls = bound
        packed = list(values)
        for i in tensors:
            packed[i] = packed[i].data_ptr()
        for i in nulls:
            packed[i] = 0
        for i in self._structs:
            packed[i : i + 1] = packed[i]
        try:
            self._layout.pack_into(words, 0, *packed)
        except struct.error:
            self._refuse_words(packed)

    def _check(self, values: tuple[object, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        for (name, kind, members), value in zip(self.parameters, values):
            if members:
                fields = tuple(member for member, _ in members)
                fits = isinstance(value, tuple) and getattr(value, "_fields", None) == fields
                expected = f"a NamedTuple of {', '.join(fields)}"
            else:
                fits, expected = _fits(kind, value), _PYTHON[kind]
            if not fits:
                raise TypeError(
                    f"{self.where}: {name} is {kind}, so it takes {expected}, but got "
                    f"{type(value).__name__} {getattr(value, '_fields', '')}".rstrip()
                )
        tensors = (i for i, value in enumerate(values) if isinstance(value, Tensor))
        nulls = (i for i, value in enumerate(values) if value is None)
        return tuple(tensors), tuple(nulls)

    def _refuse_names(self, arguments: Mapping[str, object]) -> None:
        names = [parameter.name for parameter in self.parameters]
        problems = []
        for name in arguments:
            if name not in names:
                near = difflib.get_close_matches(name, [n for n in names if n not in arguments], 1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                problems.append(f"{name!r} is no parameter{hint}")
        missing = [name for name in names if name not in arguments]
        if missing:
            problems.append(f"nothing is given for {', '.join(map(repr, missing))}")
        raise ValueError(
            f"{self.where}: {'; '.join(problems)}. The kernel's parameters are {', '.join(names)}"
        )

    def _refuse_words(self, words: list[Any]) -> None:
        """Raise ValueError for the first of packed words that does not fit."""
        for (name, kind), word in zip(self._words, words):
            try:
                struct.pack(_CODES[kind], word)
            except struct.error:
                raise ValueError(
                    f"{self.where}: {name} is {word!r}, which no {kind} holds"
                ) from None


def _fits(kind: str, value: object) -> bool:
    if kind == "pointer":
        return value is None or isinstance(value, Tensor)
    if kind == "int64_t":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, bool if kind == "bool" else float)
