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
from types import FrameType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

_get_thread = threading.get_ident
_reference = weakref.ref


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


class Calls:
    """Calls in progress, in all threads, of which each call asks.

    Attributes:
        ongoing: their threads.
    """

    def __init__(self) -> None:
        # A reference is hashed when it is put in, while its call is there.
        self.ongoing: dict[weakref.ref[functools.partial[Any]], int] = {}
        # The dict's own methods are in C, where no signal handler runs.
        self._end = self.ongoing.pop
        _registries.add(self)

    def made(self, function: Callable[..., R]) -> Callable[..., R]:
        """Return ``function``, to be called at once: in progress until it is dropped."""
        call = functools.partial(function)
        self.ongoing[_reference(call, self._end)] = _get_thread()
        return call

    def here(self) -> bool:
        """Return whether the current thread is in one of the calls."""
        return _get_thread() in tuple(self.ongoing.values())

    def _forked(self) -> None:
        # Calls of threads that no longer exist would never end.
        for call, thread in tuple(self.ongoing.items()):
            if thread != _get_thread():
                del self.ongoing[call]


class FoundCalls:
    """A decorator of one function, whose calls in progress are found on the stacks of the threads.

    A call pays nothing for it, and leaves nothing behind, however it ends; who asks reads stacks.
    """

    def __call__(self, function: F) -> F:
        """Find the calls of ``function``."""
        self._function: Any = function
        return function

    def here(self) -> bool:
        """Return whether the current thread is in one of the calls."""
        return self._is_in(sys._getframe(1))

    def elsewhere(self) -> bool:
        """Return whether another thread is in one of the calls."""
        # Of a process that has forked, only the thread of the child is left.
        frames = sys._current_frames()
        # This frame would hold itself, and all locals from here outwards, tensors among them.
        del frames[_get_thread()]
        return any(map(self._is_in, frames.values()))

    def _is_in(self, frame: FrameType | None) -> bool:
        # Asked for now: tools that count lines replace it.
        code = self._function.__code__
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        return frame is not None


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_registries: weakref.WeakSet[Calls] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in _locks:
        lock._forked()
    for calls in _registries:
        calls._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
