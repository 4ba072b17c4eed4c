"""The parameters of a kernel, read from its text; they check and pack a launch's arguments."""

from __future__ import annotations

import difflib
import functools
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn, TypeAlias, cast

from torch import Tensor

__all__ = ["Bound", "KernelSignature", "Parameter", "kernels_of", "refuse_names"]

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
        found = []
        for parameter in filter(None, map(str.strip, declared.split(","))):
            called = parameter.split()[-1].lstrip("*")
            kind = parameter.removesuffix(called).strip()
            kind = "pointer" if "*" in kind else kind.removeprefix("const ")
            found.append(Parameter(called, kind, structs.get(kind, ())))
        kernels[name] = tuple(found)
    return kernels


def _members(body: str) -> tuple[tuple[str, str], ...]:
    """The members of a plain struct of numbers; none of another one."""
    declarations = [_MEMBERS.fullmatch(line) for line in body.split(";")[:-1]]
    return tuple(
        (name.strip(), found[1])
        for found in declarations
        if found is not None and None not in declarations
        for name in found[2].split(",")
    )


Bound: TypeAlias = tuple[bytes, tuple[Tensor | None, ...]]
"""A launch's arguments: the words of its numbers, and the tensors of its pointers."""


class _Part:
    """The numbers among the parameters of one entry, or the pointers."""

    def __init__(self, where: str, parameters: Sequence[Parameter]) -> None:
        self._where = where
        self.parameters = tuple(parameters)
        names = self.names = [parameter.name for parameter in parameters]
        self.in_order = _getter(names)
        self._types_of = _types_of(len(names))
        self._accepted: set[tuple[type, ...]] = set()

    def of(self, arguments: Mapping[str, object]) -> tuple[Any, ...]:
        """Return the arguments of these parameters, in their order."""
        values = self.in_order(arguments)
        # Types that were checked once need no second look.
        types = self._types_of(*values)
        if types not in self._accepted:
            self.check(values)
            self._accepted.add(types)
        return values

    def check(self, values: tuple[object, ...]) -> None:
        """Raise TypeError for the first of the values that its parameter does not take."""
        for (name, kind, members), value in zip(self.parameters, values):
            if members:
                fields = tuple(member for member, _ in members)
                fits = isinstance(value, tuple) and getattr(value, "_fields", None) == fields
                expected = f"a NamedTuple of {', '.join(fields)}"
            else:
                fits, expected = _fits(kind, value), _PYTHON[kind]
            if not fits:
                raise TypeError(
                    f"{self._where}: {name} is {kind}, so it takes {expected}, but got "
                    f"{type(value).__name__} {getattr(value, '_fields', '')}".rstrip()
                )


class _Numbers(_Part):
    """The numbers, or some of them.

    Attributes:
        words: the name and the kind of each word that they are packed to.
        pack: packs the numbers; raises ValueError for the first that does not fit.
    """

    def __init__(self, where: str, parameters: Sequence[Parameter]) -> None:
        super().__init__(where, parameters)
        self.words = [
            word
            for name, kind, members in parameters
            for word in [(f"{name}.{m}", k) for m, k in members] or [(name, kind)]
        ]
        self.pack = _packer(self.parameters, self.names, {}, b"", self._refuse)

    def _refuse(self, *numbers: Any) -> None:
        values: list[Any] = []
        for parameter, number in zip(self.parameters, numbers):
            values += number if parameter.members else [number]
        for (name, kind), value in zip(self.words, values):
            try:
                struct.pack(_CODES[kind], value)
            except struct.error:
                raise ValueError(
                    f"{self._where}: {name} is {value!r}, which no {kind} holds"
                ) from None


class KernelSignature:
    """The parameters of one entry, and how its arguments lie: each from a word of 8 bytes on.

    Args:
        where: the file and the entry, for messages.
        parameters: of the kernel.

    Attributes:
        offsets: the first word of each parameter.
        n_words: of all parameters.
        pointers: the positions of the pointers among the parameters.
        put: writes to a buffer of all words the addresses of tensors, one for each pointer, and
            then the words of the numbers; called with the buffer and a `Bound`'s members. The
            address of None is 0.
        check_tensors: raises TypeError if what is given for the pointers is no Tensor or None.

    Raises:
        ValueError: a parameter that no launch can pass.
    """

    def __init__(self, where: str, parameters: tuple[Parameter, ...]) -> None:
        self.where = where
        self.parameters = parameters
        self.pointers = [i for i, each in enumerate(parameters) if each.kind == "pointer"]
        # Those of the pointers come first, so that one call writes all.
        pointer_words = iter(range(len(self.pointers)))
        self.n_words = len(self.pointers)
        self.offsets: list[int] = []
        for name, kind, members in parameters:
            if kind not in _PYTHON and not members:
                raise ValueError(
                    f"{where}: parameter {name!r} is of type {kind}; a kernel takes pointers, "
                    "int64_t, double, bool, and plain structs of these three"
                )
            if kind == "pointer":
                self.offsets.append(next(pointer_words))
            else:
                self.offsets.append(self.n_words)
                self.n_words += len(members) or 1
        self._tensors = _Part(where, [parameters[i] for i in self.pointers])
        self.check_tensors = self._tensors.check
        self._numbers = _Numbers(where, [each for each in parameters if each.kind != "pointer"])
        self.put = _putter(len(self.pointers), len(self._numbers.words))

    def bind(self, arguments: Mapping[str, object]) -> Bound:
        """Check the numbers, and put all arguments into the order of the parameters.

        Raises:
            ValueError: a parameter without an argument, or the reverse; or a number that its
                parameter cannot hold.
            TypeError: a number of another kind than its parameter.
        """
        try:
            if len(arguments) == len(self.parameters):
                words = self._numbers.pack(*self._numbers.of(arguments))
                return words, self._tensors.in_order(arguments)
        except KeyError:
            pass
        refuse_names(self.where, arguments, [parameter.name for parameter in self.parameters])

    def packer(self, unset: Sequence[str], numbers: Mapping[str, object]) -> Callable[..., bytes]:
        """Give what packs the numbers as :meth:`bind` does, with some to come and the others fixed.

        Args:
            unset: the names of those to come. They are the function's arguments, in this order; of
                a struct, its members' values.
            numbers: the others.

        Raises:
            ValueError, TypeError: as :meth:`bind`. What is given raises ValueError where its
                parameters cannot hold such numbers.
        """
        names, given = self._numbers.names, {**dict.fromkeys(unset), **numbers}
        if given.keys() != set(names):
            refuse_names(self.where, given, names)
        if len(given) < len(unset) + len(numbers):
            raise ValueError(f"{self.where}: a parameter is unset twice, or has a number as well")
        parameters = self._numbers.parameters
        fixed = _Numbers(self.where, [each for each in parameters if each.name in numbers])
        values = fixed.of(numbers)
        # Those behind the last that is unset are packed once.
        end = max((i + 1 for i, each in enumerate(parameters) if each.name in unset), default=0)
        n_behind = sum(len(each.members) or 1 for each in parameters[end:])
        packed = fixed.pack(*values)
        behind = packed[len(packed) - 8 * n_behind :]

        def refuse(*numbers: object) -> NoReturn:
            raise ValueError(f"{self.where}: {', '.join(unset)} cannot hold {numbers}") from None

        return _packer(parameters[:end], unset, dict(zip(fixed.names, values)), behind, refuse)


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


# As texts, these are compiled once; loops over the arguments take twice as long at each launch.


@functools.cache
def _types_of(n: int) -> Callable[..., tuple[type, ...]]:
    """Return what gives the types of ``n`` arguments."""
    taken = [f"a{i}" for i in range(n)]
    found = eval(f"lambda {', '.join(taken)}: ({''.join(f'type({name}), ' for name in taken)})")
    return cast("Callable[..., tuple[type, ...]]", found)


@functools.cache
def _putter(pointers: int, numbers: int) -> Callable[..., None]:
    """Return what writes the arguments of so many pointers and words of numbers."""
    addresses = (f"0 if (a := tensors[{i}]) is None else a.data_ptr(), " for i in range(pointers))
    put = eval(
        f"lambda buffer, words, tensors: put(buffer, 0, {''.join(addresses)}words)",
        {"put": struct.Struct(f"={pointers}Q{8 * numbers}s").pack_into},
    )
    return cast("Callable[..., None]", put)


def _getter(names: Sequence[str]) -> Callable[[Mapping[str, object]], tuple[Any, ...]]:
    """Return what gives the arguments with these names; itemgetter gives no tuple of one."""
    if len(names) > 1:
        return itemgetter(*names)
    return (lambda arguments: (arguments[names[0]],)) if names else lambda arguments: ()


def _packer(
    numbers: Sequence[Parameter],
    unset: Sequence[str],
    fixed: Mapping[str, object],
    behind: bytes,
    refuse: Callable[..., None],
) -> Callable[..., bytes]:
    """Return what packs an argument for each of the parameters in ``unset``; structs are opened.

    ``fixed`` has the arguments of the other ones in ``numbers``, and ``behind`` are the words that
    follow. ``refuse`` is called with arguments that cannot be packed.
    """
    places = {name: f"a{i}" for i, name in enumerate((*unset, *fixed))}
    opened = ("*" * bool(each.members) + places[each.name] for each in numbers)
    kinds = (k for each in numbers for _, k in each.members or [("", each.kind)])
    layout = struct.Struct("=" + "".join(_CODES[kind] for kind in kinds))
    known = {places[name]: value for name, value in fixed.items()}
    known |= {"pack_all": layout.pack, "behind": behind, "error": struct.error, "refuse": refuse}
    taken = ", ".join(places[name] for name in unset)
    text = f"""
def pack({taken}):
    try:
        return pack_all({", ".join(opened)}){" + behind" * bool(behind)}
    except (TypeError, error):
        refuse({taken})
        raise
"""
    exec(text, known)
    return cast("Callable[..., bytes]", known["pack"])


def _fits(kind: str, value: object) -> bool:
    if kind == "pointer":
        return value is None or isinstance(value, Tensor)
    if kind == "int64_t":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, bool if kind == "bool" else float)
