"""Settings of the process, of which several threads may need different values at once.

A *block* (an entered mode) chooses a value for as long as it is open. A *call* may hold another
value while it runs: an allowed call runs with the flag off, a native one needs it on. Calls of two
threads that need different values wait for each other. The chosen value is remembered meanwhile, so
that no thread mistakes a value held by another thread's call for the program's choice.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from detmode.process.undo import Calls, Lock, Undo

T = TypeVar("T")

_get_thread = threading.get_ident
_get_flag = torch._C._get_deterministic_algorithms
_get_warn_only = torch._C._get_deterministic_algorithms_warn_only
_set_flag = torch._C._set_deterministic_algorithms

PATIENCE = 60.0
"""The seconds that a call waits for calls of other threads that need another value."""

native_calls = Calls()
"""The calls that need PyTorch's deterministic paths."""


class _OutsidePython:
    """Calls of the same kind that are made without Python: none, until a player in C++ is there.

    Such calls do not begin while calls wait for a value of a setting or hold one
    (:attr:`Setting.holds`). ``here`` and ``elsewhere`` return whether this thread, or another one,
    is in one of them.
    """

    def __init__(self) -> None:
        self.here: Callable[[], int] = int
        self.elsewhere: Callable[[], int] = int


outside_python = _OutsidePython()


class _ConflictError(RuntimeError):
    """Calls of two threads need different values of a setting of the process."""


class Setting(Generic[T]):
    """One setting, which blocks choose and calls hold.

    Blocks of several threads may end in any order. A block that ends while a later one is open
    passes its saved value on to that block, so that the last block to end restores the first value.

    Args:
        name: of the setting, for messages.
        read: returns the value.
        write: sets the value.
        needed: the value that PyTorch's deterministic paths need, if calls need other values too.
        is_local: returns whether each thread has its own value.

    Attributes:
        holding: given a value, returns the block that holds it while a call runs; entering it
            raises RuntimeError if a call of another thread needs another value for longer than
            ``PATIENCE``.
        holds: the number of calls that wait for a value or hold one.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], T],
        write: Callable[[T], object],
        *,
        needed: T | None = None,
        is_local: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self._read = read
        self._write = write
        self._needed = needed
        self._is_local = is_local
        self._lock = Lock()
        # What each open block found, in the order in which they began.
        self._open: dict[Undo, T] = {}
        # Calls, in order of arrival.
        self._waiting: list[_Hold[T]] = []
        self._active: list[_Hold[T]] = []
        # Not a method, whose call would be one more of each allowed call.
        self.holding: Callable[[T], Undo] = functools.partial(_Hold, self)
        self.holds = ctypes.c_int(0)
        # While calls are active: the program's value, and the value last written for a call.
        self._chosen: T
        self._held: T
        self._changes = 0
        all_settings.append(self)

    def chosen(self) -> T:
        """Return the program's value, whatever value a call holds at the moment."""
        changes = self._changes
        value = self._read()
        if self._active or changes != self._changes:
            return self._lock.run(self._find_chosen)
        return value

    def _find_chosen(self) -> T:
        return self._chosen if self._active else self._read()

    # Blocks

    def choose(self, value: T, undo: Undo) -> None:
        """Set ``value`` until ``undo`` runs."""
        self.save(undo)
        self._undisturbed(value, self._set, value)

    def save(self, undo: Undo) -> None:
        """Remember the value until ``undo`` restores it."""
        undo.note(functools.partial(self._restore, undo))
        self._lock.run(self._save, undo)

    def _save(self, block: Undo) -> None:
        self._open.setdefault(block, self._find_chosen())

    def save_late(self) -> bool:
        """Remember the value for blocks that began before there was one, ``None`` for them.

        Returns:
            Whether a block is open for which the value of this thread counts.
        """
        return self._lock.run(self._save_late)

    def _save_late(self) -> bool:
        # The collector may end a block meanwhile.
        for block, value in list(self._open.items()):
            if value is None and block in self._open:
                self._open[block] = self._read()
        return any(
            not self._is_local() or block.thread == _get_thread() for block in list(self._open)
        )

    def _restore(self, block: Undo) -> None:
        if self._lock.run(self._leave_to_next, block):
            return
        try:
            self._undisturbed(self._open[block], self._put_back, block)
        except Exception as error:
            # The user's settings are restored even if another call keeps running, or the program
            # has replaced the clock, and it fails.
            self._lock.run(self._put_back, block)
            if not isinstance(error, _ConflictError):
                raise

    def _leave_to_next(self, block: Undo) -> bool:
        """Return whether nothing is left to restore: it is done, or a later block will do it."""
        if block not in self._open:
            return True
        mine = [
            open_block
            for open_block in self._open
            if not self._is_local() or open_block.thread == block.thread
        ]
        later = mine[mine.index(block) + 1 :]
        if later:
            self._open[later[0]] = self._open[block]
            del self._open[block]
        return bool(later)

    def _put_back(self, block: Undo) -> None:
        # Another thread's block may have begun meanwhile.
        if not self._leave_to_next(block):
            restore = functools.partial(self._set, self._open[block])
            if self._is_local():
                block.run_in_thread(restore)
            else:
                restore()
            del self._open[block]

    def _undisturbed(self, value: T, section: Callable[..., None], *args: Any) -> None:
        """Wait, so that changing to ``value`` in the section disturbs no other thread's call."""
        if self._needed is None:
            self._lock.run(section, *args)
        else:
            self.holding(value).around(self._lock.run, section, *args)

    def _set(self, value: T) -> None:
        if self._active:
            self._chosen = value
        if not self._active or self._held == value:
            self._write(value)

    # Calls

    def _take(self, hold: _Hold[T]) -> bool:
        """Hold the value unless another thread's call needs another one; return success."""
        if hold not in self._waiting:
            # Before checking: a native call that begins now sees it, and waits in turn.
            self._waiting.append(hold)
            self._count_holds()
        if self._must_wait(hold):
            return False
        if not self._active:
            self._chosen = self._read()
        self._changes += 1
        self._held = hold.value
        self._active.append(hold)
        self._waiting.remove(hold)
        self._write(hold.value)
        return True

    def _must_wait(self, hold: _Hold[T]) -> bool:
        for active in tuple(self._active):
            if active.thread != hold.thread and active.value != hold.value:
                return True
        if self._waiting[0] is not hold:
            # Earlier calls go first, unless they wait for this thread.
            earlier = self._waiting[: self._waiting.index(hold)]
            if any(active.value != hold.value for active in earlier) and not (
                native_calls.here()
                or bool(outside_python.here())
                or any(active.thread == hold.thread for active in self._active)
            ):
                return True
        disturbs = self._needed != hold.value and self._read() != hold.value
        return disturbs and (native_calls.elsewhere() or bool(outside_python.elsewhere()))

    def _count_holds(self) -> None:
        # Counted again each time: an interrupt between a list and a sum would last.
        self.holds.value = len(self._waiting) + len(self._active)

    def _drop(self, hold: _Hold[T]) -> None:
        if hold in self._waiting:
            self._waiting.remove(hold)
        if hold in self._active:
            self._release(hold)
        self._count_holds()

    def _release(self, hold: _Hold[T]) -> None:
        after = self._chosen
        if len(self._active) > 1:
            after = [active for active in self._active if active is not hold][-1].value
        current = self._read()
        if current != self._held and current != after:
            # The program has chosen a new value, in the call or in another thread.
            self._chosen = after = current
        self._write(after)
        self._held = after
        self._changes += 1
        self._active.remove(hold)

    def _forked(self) -> None:
        # Calls of threads that no longer exist would never end.
        for hold in (*self._waiting, *self._active):
            if hold.thread != threading.get_ident():
                self._drop(hold)


all_settings: list[Setting[Any]] = []


class _Hold(Undo, Generic[T]):
    """The value of a setting that a call needs while it runs."""

    def __init__(self, setting: Setting[T], value: T) -> None:
        # Without the call of Undo's, which is for steps.
        self.thread = _get_thread()
        self._setting = setting
        self.value = value

    def __enter__(self) -> None:
        try:
            self._wait()
        except BaseException:
            # Others wait for those that have waited longer.
            self.run()
            raise

    def _wait(self) -> None:
        setting = self._setting
        if setting._lock.run(setting._take, self):
            return
        patient_until = time.monotonic() + PATIENCE
        while not setting._lock.run(setting._take, self):
            if time.monotonic() > patient_until:
                raise _ConflictError(
                    f"{setting.name} belongs to the process, and calls of two threads need "
                    "different values at the same time: this call has waited for the other for "
                    f"{PATIENCE:.0f} seconds; run such calls in one thread, or one after another"
                )
            time.sleep(1e-4)

    def run(self) -> None:
        """End the hold; after an interrupt the end of the ``with`` statement does it again."""
        self._setting._lock.run(self._setting._drop, self)
        self.is_done = True
        self._end = None


def _after_fork() -> None:
    for setting in all_settings:
        setting._forked()


if hasattr(os, "register_at_fork"):
    # After the locks: functions registered later run later.
    os.register_at_fork(after_in_child=_after_fork)

# The C setters also work where torch.backends is frozen.
FLAG: Setting[tuple[bool, bool]] = Setting(
    "PyTorch's deterministic flag",
    lambda: (_get_flag(), _get_warn_only()),
    lambda pair: _set_flag(pair[0], warn_only=pair[1]),
    needed=(True, False),
)
FILL = Setting(
    "the filling of uninitialized memory",
    torch._C._get_deterministic_fill_uninitialized_memory,
    torch._C._set_deterministic_fill_uninitialized_memory,
    needed=True,
)


def is_flag_on() -> bool:
    """Return whether PyTorch's flag is on by the program's choice: ``FLAG.chosen()[0]``, sooner."""
    changes = FLAG._changes
    value: bool = _get_flag()
    if FLAG._active or changes != FLAG._changes:
        return FLAG.chosen()[0]
    return value
