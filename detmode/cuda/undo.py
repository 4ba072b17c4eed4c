"""Locks, blocks and calls that neither a fork nor an interrupt leaves in an inconsistent state.

A signal handler may raise, as for Ctrl-C, after any call of a C function and at the start of any
Python function, even before the first line of an ``__exit__``, which is not called again. Cleanup
that must happen anyway is tied to an object that only the interpreter holds while a ``with``
statement or a call lasts, and that it drops at the end, however the end comes about.

It lies in the lowest folder because the host runner and the launches need its locks, and a folder
imports only those below it.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")

_get_thread = threading.get_ident


class Lock:
    """A reentrant lock that is free in a forked child and that no interrupt leaves locked."""

    def __init__(self) -> None:
        self._held = threading.RLock()
        _locks.add(self)

    def run(self, section: Callable[..., R], *args: Any) -> R:
        """Call ``section(*args)`` while holding the lock."""
        # On one line, so that a debugger or profiler that raises at line events cannot raise
        # between acquiring and the call, or before the release.
        with self._held: return section(*args)  # fmt: skip  # noqa: E701

    def _forked(self) -> None:
        # The thread that held it does not exist in the child.
        self._held = threading.RLock()


class Undo:
    """The steps that undo a block's changes; each may run twice, or without its change.

    A step is noted before the change that it undoes. A subclass with an ``__enter__`` is a block
    itself, to be entered once.

    Attributes:
        thread: the thread that entered the block.
        is_done: true once the steps have run.
    """

    is_done = False
    _end: weakref.ref[Any] | None = None

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []
        self.thread = _get_thread()

    def note(self, step: Callable[[], object]) -> None:
        """Add a step, to run before those noted earlier."""
        self._steps.append(step)

    def run(self) -> None:
        """Run all steps; an interrupt during them is raised after all have run."""
        try:
            self._run()
        except BaseException:
            self._run()
            raise
        self.is_done = True
        self._end = None

    def _run(self) -> None:
        for step in reversed(self._steps):
            step()

    @property
    def __exit__(self) -> Callable[..., None]:
        """The end of the ``with`` statement that looks it up."""
        # A partial has no frame. A function's frame, ended by an interrupt, would stay in the
        # traceback with its arguments.
        exit = functools.partial(_undo, self)
        self._end = weakref.ref(exit, self._run_in_its_thread)
        return exit

    def run_at_end_of(self, exit: Any) -> None:
        """Run when ``exit``, which a ``with`` statement holds, is dropped, unless already run."""
        self._end = weakref.ref(exit, self._run_in_its_thread)

    def _run_in_its_thread(self, _: object) -> None:
        # Only the thread that entered a block may leave it.
        if _get_thread() == self.thread:
            self.run()


def _undo(undo: Undo, *error: BaseException | None) -> None:
    # The garbage collector may drop a generator's objects before it closes the generator.
    if not undo.is_done:
        undo.run()


class _Latest(threading.local):
    exit: weakref.ref[Any] | None = None


_latest = _Latest()


class leaving:
    """The ``__exit__`` of a class, which creates a separate object for each ``with`` statement.

    Args:
        leave: leaves the block; called with the block, and type, value and traceback of the
            exception.
    """

    def __init__(self, leave: Callable[..., None]) -> None:
        self._leave = leave
        self.__doc__ = leave.__doc__

    def __get__(self, block: Any, owner: type) -> Callable[..., None]:
        if block is None:
            return self._leave
        exit = functools.partial(_leave, self._leave, block, [])
        _latest.exit = weakref.ref(exit)
        return exit


def _leave(
    leave: Callable[..., None], block: object, undo: list[Undo], *error: BaseException | None
) -> None:
    if not (undo and undo[0].is_done):
        leave(block, *error)


def undone_at_end(block: object, undo: Undo) -> Undo:
    """Run ``undo`` when the ``with`` statement that is entering ``block`` ends.

    Call it in ``__enter__``, right before which the statement has looked up ``__exit__``. It has no
    effect if ``__enter__`` was called by hand.
    """
    exit = _latest.exit() if _latest.exit is not None else None
    _latest.exit = None
    if exit is not None and exit.args[1] is block:
        exit.args[2].append(undo)
        undo.run_at_end_of(exit)
    return undo


class _Token:
    """An object to which a call in progress refers."""


class _Own(threading.local):
    """The token of a thread.

    Args:
        tokens: of all threads; it is put there.
    """

    def __init__(self, tokens: weakref.WeakValueDictionary[int, _Token]) -> None:
        self.token = _Token()
        tokens[_get_thread()] = self.token


class Calls:
    """Calls in progress, in all threads: each refers to the token of its thread.

    Only the interpreter holds the reference, on its stack, as in ``(calls.own.token, call())[1]``,
    or an object that a block holds. However the call ends, the reference is dropped: there is
    nothing to undo. Who asks for calls counts references.

    Attributes:
        own: has the ``token`` of the current thread.
    """

    def __init__(self) -> None:
        self._tokens: weakref.WeakValueDictionary[int, _Token] = weakref.WeakValueDictionary()
        self.own = _Own(self._tokens)
        _registries.add(self)

    def here(self) -> bool:
        """Return whether the current thread is in one of the calls."""
        return _references([self.own.token]) > _IDLE

    def elsewhere(self) -> bool:
        """Return whether another thread is in one of the calls."""
        # No other list holds them: that would count.
        tokens = list(filter(None, (reference() for reference in self._tokens.valuerefs())))
        if self.own.token in tokens:
            tokens.remove(self.own.token)
        return _references(tokens) > _IDLE

    def _forked(self) -> None:
        # Calls of threads that no longer exist would never end.
        self._tokens.clear()
        self._tokens[_get_thread()] = self.own.token


def _references(tokens: list[_Token]) -> int:
    """Return the most references to one of the tokens."""
    return max(map(sys.getrefcount, tokens), default=0)


# To a token that only its thread has.
_token = _Token()
_IDLE = _references([_token])

_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_registries: weakref.WeakSet[Calls] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in _locks:
        lock._forked()
    for calls in _registries:
        calls._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
