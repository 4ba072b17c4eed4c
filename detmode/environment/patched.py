"""An attribute of a foreign object that is replaced while somebody needs the replacement.

Users come and go in any order, from any thread. When the last has left, the attribute is as it was.
What another library has put there meanwhile stays: it may call what it found there, which then does
no more than what was there before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import WeakSet

from detmode.cuda.undo import Lock, Undo

_ABSENT = object()
"""In place of an attribute that the object itself does not have."""


class _StandIn:
    """One replacement: what it replaces, and whether it still stands for that.

    Args:
        held: in the object itself, which may inherit the attribute.
        original: the attribute.
        make: makes the replacement.
    """

    def __init__(
        self, held: Any, original: Callable[..., Any], make: Callable[..., Callable[..., Any]]
    ) -> None:
        self.held = held
        self.is_active = True
        replacement = make(original)

        # With the replacement's own fields: some keep Dynamo out.
        @functools.wraps(replacement)
        def function(*args: Any, **kwargs: Any) -> Any:
            return (replacement if self.is_active else original)(*args, **kwargs)

        function.__wrapped__ = original
        self.function = function


class Patched:
    """A function that is an attribute of a foreign object, to be replaced while it has users.

    Args:
        find: returns the object, or ``None`` if there is none, or not yet.
        name: of the attribute. If the object lacks it, nothing is replaced.
        make: is given the function that is there, and returns the one that replaces it.

    Attributes:
        users: those that need the replacement at the moment, in the order in which they came.

    Example:
        >>> import random
        >>> doubled = Patched(lambda: random, "random", lambda plain: lambda: 2 * plain())
        >>> doubled.enter("a test")
        >>> doubled.leave("a test")
    """

    _lock = Lock()

    def __init__(
        self,
        find: Callable[[], Any],
        name: str,
        make: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        self.users: tuple[Any, ...] = ()
        self._find = find
        self._name = name
        self._make = make
        self._current: _StandIn | None = None
        self._functions: WeakSet[FunctionType] = WeakSet()

    def until(self, undo: Undo) -> None:
        """Replace the attribute until ``undo`` runs, which is the user."""
        undo.note(functools.partial(self.leave, undo))
        self.enter(undo)

    def enter(self, user: Any) -> None:
        """Replace the attribute for a user."""
        self._lock.run(self._enter, user)

    def leave(self, user: Any) -> None:
        """Restore the attribute if no other user needs the replacement; a second time is one."""
        self._lock.run(self._leave, user)

    def look_again(self) -> None:
        """Replace what is there now: the object may be new, or may have replaced it itself."""
        self._lock.run(self._look)

    def _enter(self, user: Any) -> None:
        self.users = (*self.users, user)
        self._look()

    def _leave(self, user: Any) -> None:
        self.users = tuple(each for each in self.users if each is not user)
        if not self.users:
            self._restore()

    def _look(self) -> None:
        owner = self._find()
        if not self.users or not hasattr(owner, self._name):
            return
        if self._current is not None and self._held(owner) is self._current.function:
            return
        held, original = self._held(owner), getattr(owner, self._name)
        # Another library may have put back one that it had found.
        while isinstance(original, FunctionType) and original in self._functions:
            held = original = original.__wrapped__  # type: ignore[attr-defined]  # has been wrapped
        if self._current is not None:
            self._current.is_active = False
        stand_in = _StandIn(held, original, self._make)
        self._functions.add(stand_in.function)
        self._current = stand_in
        setattr(owner, self._name, stand_in.function)

    def _restore(self) -> None:
        stand_in, owner = self._current, self._find()
        if stand_in is None:
            return
        stand_in.is_active = False
        if self._held(owner) is stand_in.function:
            if stand_in.held is _ABSENT:
                delattr(owner, self._name)
            else:
                setattr(owner, self._name, stand_in.held)
        self._current = None

    def _held(self, owner: Any) -> Any:
        # Of a class, a static method as such.
        return getattr(owner, "__dict__", {}).get(self._name, _ABSENT)
