"""Dicts that keep values: up to a number of them, or for as long as objects live."""

from __future__ import annotations

import weakref
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


def keep_bounded(values: dict[K, T], key: K, value: T, most: int) -> T:
    """Set the value of a key, and return it; if the dict is full, its oldest quarter is dropped.

    All at once, as the oldest key of a dict is found the later the more are gone before it. Threads
    may share the dict, which is full with ``most`` values, at least 4.
    """
    if len(values) >= most:
        for oldest in list(values)[: most // 4]:
            values.pop(oldest, None)
    values[key] = value
    return value


class ById(dict[int, T]):
    """Values by the ``id`` of their objects; a value is dropped with its object.

    No object is kept alive, and an object never gets the value of an earlier one at its address. A
    ``weakref.WeakKeyDictionary`` treats code objects of the same source as equal, and is slower.
    """

    def __init__(self) -> None:
        super().__init__()
        self._references: dict[int, weakref.ref[object]] = {}

    def keep(self, key: object, value: T) -> T:
        """Set and return the value of ``key``, an object that supports weak references."""
        address = id(key)

        def forget(_: object) -> None:
            self.pop(address, None)
            self._references.pop(address, None)

        self._references[address] = weakref.ref(key, forget)
        self[address] = value
        return value
