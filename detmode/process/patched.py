"""An attribute of a foreign object that is replaced while it has users.

Users come and go in any order, from any thread. When the last has left, the attribute is as it was.
What another library has put there meanwhile stays: it may call what it found there, which then does
no more than what was there before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from detmode.process.undo import Lock, Undo

_ABSENT = object()
"""In place of an attribute that the object itself does not have."""
_MARK = "_detmode_stand_in"
"""The field of a replacement that has its stand-in."""


class _StandIn:
    """One replacement of a function, and whether it still stands for that."""

    def __init__(
        self, original: Callable[..., Any], make: Callable[..., Callable[..., Any]]
    ) -> None:
        self.is_active = True
        self.make = make
        replacement = make(original)

        # With the replacement's own fields: some keep Dynamo out.
        @functools.wraps(replacement)
        def function(*args: Any, **kwargs: Any) -> Any:
            return (replacement if self.is_active else original)(*args, **kwargs)

        function.__wrapped__ = original
        setattr(function, _MARK, self)
        self.function: Any = function


class Patched:
    """A function that is an attribute of a foreign object, to be replaced while it has users.

    Args:
        find: returns the object, or ``None`` if there is none, or not yet.
        name: of the attribute. If the object lacks it, nothing is replaced.
        make: is given the function that is there, and returns the one that replaces it. Attributes
            with one function and one ``make`` have one replacement: some libraries compare them.

    Attributes:
        users: those that need the replacement at the moment, in the order in which they came.

    Example:
        >>> import random
        >>> doubled = Patched(lambda: random, "random", lambda plain: lambda: 2 * plain())
        >>> doubled.enter("a test")
        >>> doubled.leave("a test")
    """

    _lock = Lock()
    # No weak references: their end would run Python code, in which an interrupt would be lost.
    _standing: ClassVar[dict[tuple[int, int], _StandIn]] = {}
    """The active replacements of all attributes, by what they replace and their makers."""

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
        # Kept for the next user, as making one takes longer than the rest.
        self._idle: _StandIn | None = None
        self._before: Any = _ABSENT

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
        self.users = tuple(present for present in self.users if present is not user)
        if not self.users:
            self._restore()

    def _look(self) -> None:
        owner = self._find()
        if not self.users or not hasattr(owner, self._name):
            return
        current = self._current
        if current is not None and current.is_active and self._held(owner) is current.function:
            return
        held, original = self._held(owner), getattr(owner, self._name)
        # Another library may have put back one that it had found.
        while self._made(original):
            held = original = original.__wrapped__
        if current is not None:
            self._end(current)
        stand_in = self._stand_in(original)
        self._before, self._current = held, stand_in
        setattr(owner, self._name, stand_in.function)

    def _made(self, function: Any) -> bool:
        # What wraps a replacement may have its fields.
        stand_in = getattr(function, _MARK, None)
        return (
            stand_in is not None and stand_in.function is function and stand_in.make is self._make
        )

    def _stand_in(self, original: Callable[..., Any]) -> _StandIn:
        # By identity: methods in C are not hashable. The replacement keeps both.
        key = id(original), id(self._make)
        stand_in = self._standing.get(key)
        if stand_in is None:
            idle = self._idle
            is_known = idle is not None and idle.function.__wrapped__ is original
            stand_in = idle if idle is not None and is_known else _StandIn(original, self._make)
            stand_in.is_active = True
            self._standing[key] = stand_in
        return stand_in

    def _end(self, stand_in: _StandIn) -> None:
        stand_in.is_active = False
        self._standing.pop((id(stand_in.function.__wrapped__), id(stand_in.make)), None)

    def _restore(self) -> None:
        stand_in, owner = self._current, self._find()
        if stand_in is None:
            return
        self._end(stand_in)
        if self._held(owner) is stand_in.function:
            self._idle = stand_in
            if self._before is _ABSENT:
                delattr(owner, self._name)
            else:
                setattr(owner, self._name, self._before)
        self._current, self._before = None, _ABSENT

    def _held(self, owner: Any) -> Any:
        # Of a class, a static method as such.
        return getattr(owner, "__dict__", {}).get(self._name, _ABSENT)
