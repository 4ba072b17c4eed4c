"""Values that files of others have, checked against the types that detmode writes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from itertools import repeat
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from detmode.process.text import text_of

_MOST = 1 << 63


def checked(kind: Any, value: Any) -> Any:
    """Return a value of JSON as a type has it, with its texts printable.

    ``checked(dict[str, list[int]], {"late": [1, 2]})`` returns an equal dict.

    Args:
        kind: ``str``, ``int`` (from 0 to 2**63), ``float``, ``bool``, ``None``, an enum, a
            ``Literal`` of texts, a dataclass, a union of types, or a list, tuple or dict of them.
        value: the one that was read.

    Raises:
        TypeError: the value is of another type, or an object lacks a field or has another one.
        ValueError: an enum or a ``Literal`` has no such value.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for part in parts:
            with suppress(TypeError):
                return checked(part, value)
    elif origin in (list, tuple) and isinstance(value, list):
        kinds = parts if origin is tuple and parts[-1] is not Ellipsis else repeat(parts[0])
        if origin is list or parts[-1] is Ellipsis or len(parts) == len(value):
            return origin(map(checked, kinds, value))
    elif origin is dict and isinstance(value, dict):
        return {text_of(key): checked(parts[1], item) for key, item in value.items()}
    elif origin is Literal:
        if value not in parts:
            raise ValueError(f"{text_of(value)} in place of {', '.join(parts)}")
        return value
    elif kind is str:
        return text_of(value)
    elif is_dataclass(kind) and isinstance(value, dict):
        return _dataclass_of(kind, value)
    elif isinstance(kind, type) and _is_plain(kind, value):
        return kind(value) if issubclass(kind, Enum) else value
    raise TypeError(f"{type(value).__name__} in place of {getattr(kind, '__name__', kind)}")


def _dataclass_of(kind: Any, value: dict[Any, Any]) -> Any:
    kinds = get_type_hints(kind)
    if unknown := value.keys() - kinds.keys():
        raise TypeError(f"{kind.__name__} has no {text_of(min(unknown))}")
    return kind(**{name: checked(kinds[name], item) for name, item in value.items()})


def _is_plain(kind: type, value: Any) -> bool:
    if issubclass(kind, Enum):
        return isinstance(value, str)
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind and not (isinstance(value, int) and not 0 <= value < _MOST)
