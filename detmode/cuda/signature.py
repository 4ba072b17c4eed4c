"""The parameters of a kernel, read from its text; they check and pack a launch's arguments."""

from __future__ import annotations

import difflib
import re
import struct
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, NoReturn, TypeAlias

from torch import Tensor

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BOUNDS = r"(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s*)?"
_KERNEL = re.compile(rf"__global__\s+{_BOUNDS}void\s+{_BOUNDS}(\w+)\s*\(([^()]*)\)")
_STRUCT = re.compile(r"struct\s+(\w+)\s*\{([^{}]*)\}\s*;")
_MEMBERS = re.compile(r"\s*(int64_t|bool|double)\s+(\w+(?:\s*,\s*\w+)*)\s*")
_CODES = {"int64_t": "q", "bool": "q", "double": "d"}
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
        members: of a struct, in order: name and kind, ``"int64_t"``, ``"bool"`` or ``"double"``.
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
        parameters = []
        for parameter in filter(None, map(str.strip, declared.split(","))):
            called = parameter.split()[-1].lstrip("*")
            kind = parameter.removesuffix(called).strip()
            kind = "pointer" if "*" in kind else kind.removeprefix("const ")
            parameters.append(Parameter(called, kind, structs.get(kind, ())))
        kernels[name] = tuple(parameters)
    return kernels


def _members(body: str) -> tuple[tuple[str, str], ...]:
    """The members of a plain struct of numbers; none of another one."""
    declarations = [_MEMBERS.fullmatch(line) for line in body.split(";")[:-1]]
    return tuple(
        (name.strip(), match[1])
        for match in declarations
        if match is not None and None not in declarations
        for name in match[2].split(",")
    )


Bound: TypeAlias = tuple[bytes, tuple[Tensor | None, ...]]
"""A launch's arguments: the words of its numbers, and the tensors of its pointers."""


class KernelSignature:
    """The parameters of one entry, and how its arguments lie: each from a word of 8 bytes on.

    Args:
        where: the file and the entry, for messages.
        parameters: of the kernel.

    Attributes:
        offsets: the first word of each parameter.
        n_words: of all parameters.
        pointers: the positions of the pointers among the parameters.

    Raises:
        ValueError: a parameter that no launch can pass.
    """

    def __init__(self, where: str, parameters: tuple[Parameter, ...]) -> None:
        self.where = where
        self.parameters = parameters
        self.pointers = [i for i, (_, kind, _) in enumerate(parameters) if kind == "pointer"]
        # Pointers first, so that one call writes all their words; structs last, so that what they
        # hold is put behind the other numbers at once.
        self._in_order = sorted(
            parameters, key=lambda item: (item.kind != "pointer", item.members != ())
        )
        self._words: list[tuple[str, str]] = []
        begins: dict[str, int] = {}
        for name, kind, members in self._in_order:
            if kind not in _PYTHON and not members:
                raise ValueError(
                    f"{where}: parameter {name!r} is of type {kind}; a kernel takes pointers, "
                    "int64_t, double, bool, and plain structs of these three"
                )
            begins[name] = len(self._words)
            self._words += [(f"{name}.{member}", k) for member, k in members] or [(name, kind)]
        self.offsets = [begins[parameter.name] for parameter in parameters]
        self.n_words = len(self._words)
        del self._words[: len(self.pointers)]
        self._names = [parameter.name for parameter in self._in_order]
        self._known_names = frozenset(self._names)
        self._known_types: set[tuple[type, ...]] = set()
        self._n_plain = sum(not parameter.members for parameter in parameters)
        self._numbers = struct.Struct("=" + "".join(_CODES[kind] for _, kind in self._words))
        self._pack_all = struct.Struct(f"={len(self.pointers)}Q{self._numbers.size}s").pack_into

    def bind(self, arguments: Mapping[str, Any]) -> Bound:
        """Check all arguments, and put them into the order of the parameters.

        Raises:
            ValueError: a parameter without an argument, or the reverse; or a number that its
                parameter cannot hold.
            TypeError: an argument of another kind than its parameter.
        """
        if arguments.keys() != self._known_names:
            refuse_names(self.where, arguments, [parameter.name for parameter in self.parameters])
        values = tuple([arguments[name] for name in self._names])
        types = tuple(map(type, values))
        # Looking at types takes most of a bind. What has no plan launches often with the same ones:
        # a recording each time it digests a tensor.
        if types not in self._known_types:
            self._check(values)
            self._known_types.add(types)
        count, n_plain = len(self.pointers), self._n_plain
        numbers = (*values[count:n_plain], *chain.from_iterable(values[n_plain:]))
        try:
            return self._numbers.pack(*numbers), values[:count]
        except struct.error:
            self._refuse(numbers)
            raise

    def _check(self, values: Sequence[object]) -> None:
        """Raise TypeError for the first of the values that its parameter does not take."""
        for (name, kind, members), value in zip(self._in_order, values):
            fields = tuple(member for member, _ in members)
            if members:
                fits = isinstance(value, tuple) and getattr(value, "_fields", None) == fields
            else:
                fits = _fits(kind, value)
            if not fits:
                expected = f"a NamedTuple of {', '.join(fields)}" if members else _PYTHON[kind]
                raise TypeError(
                    f"{self.where}: {name} is {kind}, so it takes {expected}, but got "
                    f"{type(value).__name__} {getattr(value, '_fields', '')}".rstrip()
                )

    def put(self, buffer: Any, numbers: bytes, tensors: Sequence[Tensor | None]) -> None:
        """Write a `Bound`'s members to a buffer of all words: addresses first, 0 for None."""
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        self._pack_all(buffer, 0, *addresses, numbers)

    def _refuse(self, numbers: Sequence[object]) -> None:
        """Raise ValueError for the first number that does not fit."""
        for (name, kind), number in zip(self._words, numbers):
            try:
                struct.pack(_CODES[kind], number)
            except struct.error:
                raise ValueError(
                    f"{self.where}: {name} is {number!r}, which no {kind} holds"
                ) from None


def _fits(kind: str, value: object) -> bool:
    if kind == "pointer":
        return value is None or isinstance(value, Tensor)
    if kind == "int64_t":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, bool if kind == "bool" else float)


def refuse_names(where: str, arguments: Mapping[str, object], names: Sequence[str]) -> NoReturn:
    """Raise ValueError for arguments that are not those of the parameters with these names."""
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
        f"{where}: {'; '.join(problems)}. The kernel's parameters are {', '.join(names)}"
    )
