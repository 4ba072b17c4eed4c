"""Locks, blocks and calls that neither a fork nor an interrupt leaves in an inconsistent state.

A signal handler may raise, as for Ctrl-C, after any call and at the start of any Python function:
even before the first line of an ``__exit__``, which is not called again, and since Python 3.14
after the ``__enter__`` of a class in C, whose ``__exit__`` is then not called at all. It cannot
where a statement calls nothing: between reading an attribute and keeping what was read, or in
``finally:`` before the first call. The state of a lock and of a call is changed there. Cleanup of
other blocks that must happen anyway is tied to an object that only the interpreter holds while a
``with`` statement lasts, and that it drops at the end, however the end comes about.

It lies in the lowest folder because the host runner and the launches need its locks, and a folder
imports only those below it.
"""

from __future__ import annotations

import _thread
import functools
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

R = TypeVar("R")

_get_thread = threading.get_ident


class _Reentrant(_thread.RLock):  # type: ignore[misc]  # final in its stubs alone
    """A lock that is acquired and released by reading an attribute, which is no call."""

    __slots__ = ()
    acquired = property(_thread.RLock.acquire)
    released = property(_thread.RLock.release)


class Lock:
    """A reentrant lock that is free in a forked child and that no interrupt leaves locked."""

    def __init__(self) -> None:
        self._held = _Reentrant()
        _locks.add(self)

    def run(self, section: Callable[..., R], *args: Any) -> R:
        """Call ``section(*args)`` while holding the lock."""
        lock, is_held = self._held, None
        # Twice: a debugger may raise at the line of the first release.
        try:
            try:
                is_held = lock.acquired
                return section(*args)
            finally:
                if is_held:
                    is_held = lock.released
        finally:
            if is_held:
                is_held = lock.released

    def _forked(self) -> None:
        # The thread that held it does not exist in the child.
        self._held = _Reentrant()


class _Later(threading.local):
    def __init__(self) -> None:
        self.steps: list[Callable[[], object]] = []


_later = _Later()


class Undo:
    """The steps that undo a block's changes; each may run twice, or without its change.

    A step is noted before the change that it undoes. A block may end in another thread than the one
    that entered it: a generator goes on wherever it is stepped, and the collector closes it
    anywhere.

    Args:
        begin: makes the changes of a block that a ``with`` statement enters, once. It gets the undo
            to note the steps, and returns what the statement names after ``as``.

    Attributes:
        thread: the thread that entered the block.
        is_done: true once the steps have run.
    """

    is_done = False
    _end: weakref.ref[Any] | None = None

    def __init__(self, begin: Callable[[Undo], Any] | None = None) -> None:
        self._begin = begin
        self._steps: list[Callable[[], object]] = []
        self.thread = _get_thread()
        self._left = _later.steps
        if self._left:
            _run_left(self._left)

    def __enter__(self) -> Any:
        return self._begin and self._begin(self)

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

    def run_in_thread(self, step: Callable[[], object]) -> None:
        """Run what has an effect only in the thread that entered the block.

        In another thread it is left to that one, which runs it before it enters its next block.
        """
        if self.is_here:
            step()
        else:
            self._left.append(step)

    def around(self, function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
        """Call ``function(*args, **kwargs)`` inside the block: sooner than ``with``.

        It ends with the call, whoever refers to its objects.
        """
        # Twice: an interrupt may strike at the start of the first.
        try:
            try:
                self.__enter__()
                return function(*args, **kwargs)
            finally:
                self.run()
        finally:
            if not self.is_done:
                self.run()

    @property
    def is_here(self) -> bool:
        """True in the thread that entered the block."""
        # Not by its number, which a later thread may get.
        return _later.steps is self._left

    @property
    def is_tied(self) -> bool:
        """True if a ``with`` statement ends the block, and not a call by hand."""
        return self._end is not None

    @property
    def __exit__(self) -> Callable[..., None]:
        """The end of the ``with`` statement that looks it up."""
        # A partial has no frame. A function's frame, ended by an interrupt, would stay in the
        # traceback with its arguments.
        exit = functools.partial(_undo, self)
        self.run_at_end_of(exit)
        return exit

    def run_at_end_of(self, exit: Any) -> None:
        """Run when ``exit``, which a ``with`` statement holds, is dropped, unless already run."""
        self._end = weakref.ref(exit, self._run_at_end)

    def _run_at_end(self, _: object) -> None:
        self.run()


def _run_left(steps: list[Callable[[], object]]) -> None:
    while steps:
        steps[0]()
        del steps[0]


def _undo(undo: Undo, *error: BaseException | None) -> None:
    # The garbage collector may drop a generator's objects before it closes the generator.
    if not undo.is_done:
        undo.run()


def undone(undo: Undo | None, blocks: Iterable[Undo], message: str) -> Undo:
    """Run and return the undo of a block that is left.

    Args:
        undo: that of the ``with`` statement; ``None`` for a call of ``__exit__`` by hand. This one
            ends the last block that the thread has entered, or else the last that another one has
            entered by hand.
        blocks: those that are open, oldest first.
        message: of the error if there is none.

    Raises:
        RuntimeError: there is none.
    """
    if undo is None:
        last_first = list(blocks)[::-1]
        mine = [block for block in last_first if block.is_here]
        undo = next(iter(mine + [block for block in last_first if not block.is_tied]), None)
    if undo is None:
        raise RuntimeError(message)
    undo.run()
    return undo


def tell_if_elsewhere(undo: Undo, name: str, error: BaseException | None) -> None:
    """Tell that a block has ended in another thread than the one that entered it.

    Args:
        undo: has undone the block.
        name: of the block.
        error: the exception by which the block ends, which goes on: then it is only a warning.

    Raises:
        RuntimeError: the block has ended in another thread.
    """
    if undo.is_here:
        return
    message = (
        f"{name}: a block was entered in one thread and left in another, as of a generator that a "
        "pool of threads steps. What it had set is restored; it acted only in the thread that "
        "entered it, so calls in between may have been missed: enter and leave it in one thread"
    )
    if error is None or isinstance(error, GeneratorExit):
        raise RuntimeError(message)
    warnings.warn(message, RuntimeWarning, stacklevel=2)


class _Latest(threading.local):
    exit: weakref.ref[Any] | None = None


_latest = _Latest()


class leaving:
    """The ``__exit__`` of a class, which creates a separate object for each ``with`` statement.

    Args:
        leave: leaves the block; called with the block, with type, value and traceback of the
            exception, and with the block's undo, if a ``with`` statement ends it.
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
    if not (undo and undo[0].is_done and undo[0].is_here):
        leave(block, *error, *undo)


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


class _Progress:
    """The calls of a thread that are in progress.

    Attributes:
        depth: the number of calls, one within another.
        blocks: the blocks that count as calls.
    """

    __slots__ = ("__weakref__", "blocks", "depth")

    def __init__(self) -> None:
        self.depth = 0
        self.blocks: set[Undo] = set()

    def is_idle(self) -> bool:
        return not (self.depth or self.blocks)


class _Own(threading.local):
    """The progress of a thread."""

    def __init__(self, threads: weakref.WeakValueDictionary[int, _Progress]) -> None:
        self.progress = _Progress()
        threads[_get_thread()] = self.progress


class Calls:
    """Calls in progress, in all threads.

    Attributes:
        own: has the ``progress`` of the current thread.
    """

    def __init__(self) -> None:
        self._threads: weakref.WeakValueDictionary[int, _Progress] = weakref.WeakValueDictionary()
        self.own = _Own(self._threads)
        _registries.add(self)

    def run(self, function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
        """Call ``function(*args, **kwargs)``, and return its result."""
        progress = self.own.progress
        depth = progress.depth
        # Twice: a debugger may raise at the line of the first.
        try:
            try:
                progress.depth = depth + 1
                return function(*args, **kwargs)
            finally:
                progress.depth = depth
        finally:
            progress.depth = depth

    def count(self, block: Undo) -> None:
        """Count a block as a call of this thread until it is undone."""
        blocks = self.own.progress.blocks
        block.note(functools.partial(blocks.discard, block))
        blocks.add(block)

    def here(self) -> bool:
        """Return whether the current thread is in one of the calls."""
        return not self.own.progress.is_idle()

    def elsewhere(self) -> bool:
        """Return whether another thread is in one of the calls."""
        threads = (reference() for reference in self._threads.valuerefs())
        mine = self.own.progress
        return any(calls is not mine and not calls.is_idle() for calls in filter(None, threads))

    def _forked(self) -> None:
        # Calls of threads that no longer exist would never end.
        self._threads.clear()
        self._threads[_get_thread()] = self.own.progress


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
_registries: weakref.WeakSet[Calls] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in _locks:
        lock._forked()
    for calls in _registries:
        calls._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
