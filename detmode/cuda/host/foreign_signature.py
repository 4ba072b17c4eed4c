"""The parameters of other people's kernels, which take numbers and structs of any type."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from detmode.cuda.signature import Bound, Parameter, refuse_names

_TYPES = {
    "?": "bool",
    "b": "char",
    "B": "unsigned char",
    "h": "short",
    "H": "unsigned short",
    "i": "int",
    "I": "unsigned int",
    "q": "long long",
    "Q": "unsigned long long",
    "f": "float",
    "d": "double",
}


class ForeignSignature:
    """The parameters of an entry, as the compiled library has them.

    It packs a launch's arguments as :class:`~detmode.cuda.signature.KernelSignature` does: behind
    the pointers each number in a word of 8 bytes, each struct in as many as it needs.
    """

    def __init__(self, where: str, names: Sequence[str], kinds: Sequence[tuple[str, str, int]]):
        self.where = where
        self._kinds = kinds
        self.parameters = tuple(
            Parameter(
                name, "pointer" if kind in "pc" else _TYPES.get(code, f"a struct of {size} bytes")
            )
            for name, (kind, code, size) in zip(names, kinds, strict=True)
        )
        self.pointers = [i for i, (kind, _, _) in enumerate(kinds) if kind in "pc"]
        pointer_words = iter(range(len(self.pointers)))
        self.n_words = len(self.pointers)
        self.offsets: list[int] = []
        for kind, _, size in kinds:
            if kind in "pc":
                self.offsets.append(next(pointer_words))
            else:
                self.offsets.append(self.n_words)
                self.n_words += -(-size // 8) if kind == "s" else 1
        self.constant = [i for i, (kind, _, _) in enumerate(kinds) if kind == "c"]

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, in their order."""
        return tuple(parameter.name for parameter in self.parameters)

    def in_order(self, arguments: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
        """Return the arguments in the parameters' order.

        Raises:
            ValueError: a parameter has no argument, or an argument no parameter.
        """
        names = self.names
        if isinstance(arguments, Mapping):
            if set(arguments) != set(names):
                refuse_names(self.where, arguments, names)
            return [arguments[name] for name in names]
        if len(arguments) != len(names):
            raise ValueError(
                f"{self.where}: {len(arguments)} arguments are given for {len(names)} parameters. "
                f"The kernel's parameters are {', '.join(names)}"
            )
        return list(arguments)

    def bind(self, arguments: Mapping[str, Any] | Sequence[Any]) -> Bound:
        """Check all arguments, and put them into the order of the parameters.

        Raises:
            ValueError: as :meth:`in_order`; or a number that its parameter cannot hold.
            TypeError: an argument of another kind than its parameter.
        """
        words = bytearray()
        tensors: list[Tensor | None] = []
        for parameter, (kind, code, size), value in zip(
            self.parameters, self._kinds, self.in_order(arguments), strict=True
        ):
            where = f"{self.where}: {parameter.name} is {parameter.kind}"
            if kind in "pc":
                if value is not None and not isinstance(value, Tensor):
                    raise TypeError(
                        f"{where}, so it takes a Tensor or None, but got {type(value).__name__}"
                    )
                tensors.append(value)
            elif kind == "s":
                words += _struct_bytes(where, value, size)
            else:
                words += _number_bytes(where, value, code)
        return bytes(words), tuple(tensors)


def _number_bytes(where: str, value: Any, code: str) -> bytes:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    # Numbers of NumPy's are such, too.
    wanted = float if code in "fd" else int
    try:
        number = wanted(value)
        if isinstance(value, (str, bytes)) or (number != value and number == number):
            raise TypeError
    except (TypeError, ValueError):
        raise TypeError(f"{where}, so it takes a number of that type, but got {value!r}") from None
    try:
        return struct.pack(f"={code}", number).ljust(8, b"\0")
    except (struct.error, OverflowError):
        raise ValueError(f"{where}, which cannot hold {value!r}") from None


def _struct_bytes(where: str, value: Any, size: int) -> bytes:
    if isinstance(value, Tensor):
        value = value.detach().cpu().flatten().view(torch.uint8).numpy()
    try:
        packed = bytes(memoryview(value))
    except TypeError:
        packed = b""
    if len(packed) != size:
        raise TypeError(
            f"{where}, so it takes as many bytes (or a ctypes.Structure, a NumPy value or a "
            f"tensor), but got {type(value).__name__}"
            + (f" of {len(packed)} bytes" if packed else "")
        )
    return packed.ljust(-(-size // 8) * 8, b"\0")
