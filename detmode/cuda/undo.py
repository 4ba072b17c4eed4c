"""Locks, blocks and calls that neither a fork nor an interrupt leaves half done.

The handler of a signal may raise, as Ctrl-C does, after any call of a C function and where any
Python function begins: also before the first line of an ``__exit__``, which is not called again.
What must end in spite of that is tied to an object that the interpreter alone holds while a
``with`` statement or a call lasts, and drops at its end, however it ends.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")

_get_thread = threading.get_ident


class Lock:
    """A lock that a forked child finds free, and that no interrupt leaves taken.

    One thread may take it several times over.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def run(self, section: Callable[..., R], *args: Any) -> R:
        """Call ``section(*args)`` while the lock is taken."""
        # One line: a debugger or a profiler that raises at lines finds none to raise at between
        # the taking and the call, nor before the release.
        with self._lock: return section(*args)  # fmt: skip  # noqa: E701

    def _forked(self) -> None:
        # Whoever held it is no more.
        self._lock = threading.RLock()


class Undo:
    """What puts a block's changes back: steps that may be made twice, or without their change.

    A step is noted before the change that it undoes.

    Attributes:
        thread: the one that entered the block.
        is_done: whether the steps have been made.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []
        self.thread = _get_thread()
        self.is_done = False
        self._end: weakref.ref[Any] | None = None

    def note(self, step: Callable[[], object]) -> None:
        """Make ``step`` first, before those noted earlier."""
        self._steps.append(step)

    def run(self) -> None:
        """Make all steps. An interrupt in the midst of them is raised when all are made."""
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

    def run_at_end_of(self, exit: Any) -> None:
        """Run when ``exit``, which a ``with`` statement holds, is dropped, unless it ran before."""
        self._end = weakref.ref(exit, self._run_in_its_thread)

    def _run_in_its_thread(self, _: object) -> None:
        # What a thread has entered is not another one's to leave.
        if _get_thread() == self.thread:
            self.run()


class _Latest(threading.local):
    exit: weakref.ref[Any] | None = None


_latest = _Latest()


class leaving:
    """``__exit__`` of a class: a function that leaves the block, in an object for each ``with``.

    Args:
        leave: called with the block, and type, value and traceback of what was raised in it.
    """

    def __init__(self, leave: Callable[..., None]) -> None:
        self._leave = leave
        self.__doc__ = leave.__doc__

    def __get__(self, block: Any, owner: type) -> Callable[..., None]:
        if block is None:
            return self._leave
        # A frame that an interrupt ends stays in its traceback, with its arguments, but this does
        # not: a partial has no frame.
        exit = functools.partial(_leave, self._leave, block, [])
        _latest.exit = weakref.ref(exit)
        return exit


def _leave(
    leave: Callable[..., None], block: object, undo: list[Undo], *error: BaseException | None
) -> None:
    # The garbage collector may drop what belongs to a generator before it ends the generator.
    if not (undo and undo[0].is_done):
        leave(block, *error)


def undone_at_end(block: object, undo: Undo) -> Undo:
    """Have ``undo`` run when the ``with`` statement that is entering ``block`` ends.

    Called in ``__enter__``: the statement has looked ``__exit__`` up right before. Where
    ``__enter__`` was called by hand nothing follows.
    """
    exit = _latest.exit() if _latest.exit is not None else None
    _latest.exit = None
    if exit is not None and exit.args[1] is block:
        exit.args[2].append(undo)
        undo.run_at_end_of(exit)
    return undo


class _Call(weakref.ref["functools.partial[Any]"]):
    __slots__ = ("thread",)
    thread: int
    # Told apart by identity: a reference itself cannot be hashed once its object is gone.
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Calls:
    """Calls in progress, in all threads."""

    def __init__(self) -> None:
        self._calls: set[_Call] = set()
        _registries.add(self)

    def made(self, function: Callable[..., R]) -> Callable[..., R]:
        """``function``, to be called at once and kept nowhere: in progress until it is dropped."""
        call = functools.partial(function)
        # The set's own method, in C: no signal is looked for in it.
        known = _Call(call, self._calls.discard)
        known.thread = _get_thread()
        self._calls.add(known)
        return call

    def here(self) -> bool:
        """Whether the calling thread is in one."""
        thread = _get_thread()
        return any(call.thread == thread for call in tuple(self._calls))

    def elsewhere(self) -> bool:
        """Whether another thread is in one."""
        if not self._calls:
            return False
        thread = _get_thread()
        return any(call.thread != thread for call in tuple(self._calls))

    def _forked(self) -> None:
        # Calls of threads that are no more would never end.
        self._calls = {call for call in self._calls if call.thread == _get_thread()}


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_registries: weakref.WeakSet[Calls] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in _locks:
        lock._forked()
    for calls in _registries:
        calls._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
