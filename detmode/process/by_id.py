"""Values kept for objects by identity, for as long as the objects live."""

from __future__ import annotations

import weakref
from typing import TypeVar

T = TypeVar("T")


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
