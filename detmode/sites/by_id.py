"""What is kept for objects by their identity, for as long as they live."""

from __future__ import annotations

import weakref
from typing import TypeVar

T = TypeVar("T")


class ById(dict[int, T]):
    """Values by the ``id`` of their objects; one is forgotten with its object.

    So no object is kept alive, and none has what belonged to another one at its address. A
    ``weakref.WeakKeyDictionary`` takes functions of the same source for one, and is slower to ask.
    """

    def __init__(self) -> None:
        super().__init__()
        self._references: dict[int, weakref.ref[object]] = {}

    def keep(self, key: object, value: T) -> T:
        """Set the value of ``key``, which must be an object that takes weak references."""
        address = id(key)

        def forget(_: object) -> None:
            self.pop(address, None)
            self._references.pop(address, None)

        self._references[address] = weakref.ref(key, forget)
        self[address] = value
        return value
