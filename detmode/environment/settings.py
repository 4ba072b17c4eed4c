"""PyTorch's own settings: read, set for a block or a call, and restored whatever happens inside.

They belong to the process, and several threads may need different values at once. A *block* (an
entered mode) chooses a value for as long as it is open. A *call* may hold another value while it
runs: an allowed call runs with the flag off, a native one needs it on. Calls of two threads that
need different values wait for each other. The chosen value is remembered meanwhile, so that no
thread mistakes a value held by another thread's call for the program's choice.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import cache
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch
from torch.utils import _python_dispatch

from detmode.cuda.undo import Calls, Lock, Undo, leaving, undone_at_end

T = TypeVar("T")
R = TypeVar("R")

_get_flag = torch._C._get_deterministic_algorithms
_get_warn_only = torch._C._get_deterministic_algorithms_warn_only
_set_flag = torch._C._set_deterministic_algorithms
_get_fill = torch._C._get_deterministic_fill_uninitialized_memory
_set_fill = torch._C._set_deterministic_fill_uninitialized_memory
_get_benchmark = torch._C._get_cudnn_benchmark

PATIENCE = 60.0
"""The seconds that a call waits for calls of other threads that need another value."""

_native_calls = Calls()


class ConflictError(RuntimeError):
    """Calls of two threads need different values of a setting of the process."""


class Saved(Generic[T]):
    """The value that an open block found, compared by identity."""

    __slots__ = ("thread", "value")

    def __init__(self) -> None:
        self.value: T
        self.thread = threading.get_ident()


class Setting(Generic[T]):
    """One setting, which blocks choose and calls hold.

    Blocks of several threads may end in any order. A block that ends while a later one is open
    passes its saved value on to that block, so that the last block to end restores the first value.

    Args:
        read: returns the value.
        write: sets the value.
        choose: sets the value for a block, if different from ``write``.
        needed: the value that PyTorch's deterministic paths need, if calls need other values too.
        is_local: returns whether each thread has its own value.
    """

    def __init__(
        self,
        read: Callable[[], T],
        write: Callable[[T], object],
        *,
        choose: Callable[[T], object] | None = None,
        needed: T | None = None,
        is_local: Callable[[], bool] = lambda: False,
    ) -> None:
        self._read = read
        self._write = write
        self._choose = choose or write
        self._needed = needed
        self._is_local = is_local
        self._lock = Lock()
        self._open: list[Saved[T]] = []
        # Calls, in order of arrival.
        self._waiting: list[holding[T]] = []
        self._active: list[holding[T]] = []
        # While calls are active: the program's value, and the value last written for a call.
        self._chosen: T
        self._held: T
        self._changes = 0
        _settings.append(self)

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
        with self._undisturbed(value):
            self._lock.run(self._set, self._choose, value)

    def save(self, undo: Undo) -> None:
        """Remember the value until ``undo`` restores it."""
        saved: Saved[T] = Saved()
        undo.note(functools.partial(self._restore, saved))
        self._lock.run(self._save, saved)

    def _save(self, saved: Saved[T]) -> None:
        saved.value = self._find_chosen()
        self._open.append(saved)

    def _restore(self, saved: Saved[T]) -> None:
        if self._lock.run(self._leave_to_next, saved):
            return
        try:
            with self._undisturbed(saved.value):
                self._lock.run(self._put_back, saved)
        except ConflictError:
            # The user's settings are restored even if another call keeps running.
            self._lock.run(self._put_back, saved)

    def _leave_to_next(self, saved: Saved[T]) -> bool:
        """Return whether nothing is left to restore: it is done, or a later block will do it."""
        mine = self._open
        if self._is_local():
            mine = [other for other in self._open if other.thread == saved.thread]
        if saved not in mine:
            return True
        later = mine[mine.index(saved) + 1 :]
        if later:
            later[0].value = saved.value
            self._open.remove(saved)
        return bool(later)

    def _put_back(self, saved: Saved[T]) -> None:
        # Another thread's block may have begun meanwhile.
        if not self._leave_to_next(saved):
            self._set(self._write, saved.value)
            self._open.remove(saved)

    def _undisturbed(self, value: T) -> AbstractContextManager[None]:
        """Wait, so that changing to ``value`` in the block disturbs no other thread's call."""
        return nullcontext() if self._needed is None else holding(self, value)

    def _set(self, write: Callable[[T], object], value: T) -> None:
        if self._active:
            self._chosen = value
        if not self._active or self._held == value:
            write(value)

    # Calls

    def _take(self, hold: holding[T]) -> bool:
        """Hold the value unless another thread's call needs another one; return success."""
        if hold not in self._waiting:
            # Added before checking: a native call that begins now sees it, and waits in turn.
            self._waiting.append(hold)
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

    def _must_wait(self, hold: holding[T]) -> bool:
        for other in tuple(self._active):
            if other.thread != hold.thread and other.value != hold.value:
                if not other.is_wish:
                    return True
                self._drop(other)
        if self._waiting[0] is not hold:
            # Earlier calls go first, unless they wait for this thread.
            earlier = self._waiting[: self._waiting.index(hold)]
            if any(other.value != hold.value for other in earlier) and not (
                _native_calls.here() or any(other.thread == hold.thread for other in self._active)
            ):
                return True
        disturbs = self._needed != hold.value and self._read() != hold.value
        return disturbs and _native_calls.elsewhere()

    def _drop(self, hold: holding[T]) -> None:
        if hold in self._waiting:
            self._waiting.remove(hold)
        if hold not in self._active:
            return
        others = [other for other in self._active if other is not hold]
        after = others[-1].value if others else self._chosen
        found = self._read()
        if found not in (self._held, after):
            # The program has chosen a new value, in the call or in another thread.
            self._chosen = after = found
        self._write(after)
        self._held = after
        self._changes += 1
        self._active.remove(hold)

    def end_wishes(self) -> None:
        """End the holds of other threads' calls that are only wishes."""
        if self._active:
            self._lock.run(self._end_wishes)

    def _end_wishes(self) -> None:
        for hold in tuple(self._active):
            if hold.is_wish and hold.thread != threading.get_ident():
                self._drop(hold)

    def _forked(self) -> None:
        # Calls of threads that no longer exist would never end.
        for hold in (*self._waiting, *self._active):
            if hold.thread != threading.get_ident():
                self._drop(hold)


_settings: list[Setting[Any]] = []


class holding(Undo, Generic[T]):
    """Holds a value of a setting while a call runs.

    Args:
        setting: the setting.
        value: the value that the call needs.
        is_wish: the call can do without the value if another thread's call needs another one, now
            or before this call ends.

    Raises:
        ConflictError: a call of another thread needs another value for longer than ``PATIENCE``.
    """

    def __init__(self, setting: Setting[T], value: T, *, is_wish: bool = False) -> None:
        Undo.__init__(self)
        self._setting = setting
        self.value = value
        self.is_wish = is_wish

    def __enter__(self) -> None:
        undone_at_end(self, self)
        setting = self._setting
        if setting._lock.run(setting._take, self):
            return
        if self.is_wish:
            self.run()
            return
        patient_until = time.monotonic() + PATIENCE
        while not setting._lock.run(setting._take, self):
            if time.monotonic() > patient_until:
                self.run()
                raise ConflictError(
                    "PyTorch's deterministic flag belongs to the process, and calls of two threads "
                    "need it on and off at the same time: this call has waited for the other for "
                    f"{PATIENCE:.0f} seconds; run the allowed or warned-about calls in one thread, "
                    "or one after another"
                )
            time.sleep(1e-4)

    def _run(self) -> None:
        self._setting._lock.run(self._setting._drop, self)

    def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.run()

    __exit__ = leaving(_leave)


def deterministic_flag(mode: bool) -> holding[tuple[bool, bool]]:
    """Hold PyTorch's deterministic flag at ``mode``, without ``warn_only``, while a call runs."""
    return holding(FLAG, (mode, False))


def no_memory_fill() -> holding[bool]:
    """Turn off the filling of uninitialised memory, for substitutes, which write every element.

    This is a wish: if a native call of another thread needs the filling, it stays on.
    """
    return holding(FILL, False, is_wish=True)


def with_native_settings(function: Callable[..., R]) -> Callable[..., R]:
    """Return ``function``, to be called at once, under the settings of deterministic paths.

    Without them, the backward of attention varies under ``warn_only``, and timing chooses the
    algorithm under cuDNN's benchmark, which a program may turn on inside a block.
    """
    # Registered as in progress first: another thread's call that needs the flag off sees it and
    # waits.
    call = _native_calls.made(function)
    if (
        FLAG._active
        or FLAG._waiting
        or FILL._active
        or not _get_flag()
        or _get_warn_only()
        or _get_benchmark()
    ):
        return functools.partial(_strictly, function)
    return call


def _strictly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    benchmark = holding(CUDNN_BENCHMARK, False) if _get_benchmark() else nullcontext()
    with deterministic_flag(True), benchmark:
        return _native_calls.made(_filled)(function, args, kwargs)


def _filled(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    FILL.end_wishes()
    return function(*args, **kwargs)


@cache
def _inductor_config() -> Any:
    # Cached: a block may be left while Python shuts down and imports no more.
    # torch.use_deterministic_algorithms imports the same module; older versions lack the field.
    import torch._inductor.config as config

    return config


def _set_inductor(deterministic: bool | None) -> None:
    if hasattr(_inductor_config(), "deterministic"):
        _inductor_config().deterministic = deterministic


@cache
def _inductor_is_local() -> bool:
    # Newer versions keep the configuration in context variables, one per thread.
    entry = getattr(_inductor_config(), "_config", {}).get("deterministic")
    return isinstance(getattr(entry, "user_override", None), ContextVar)


# The C setters also work where torch.backends is frozen.
FLAG: Setting[tuple[bool, bool]] = Setting(
    lambda: (_get_flag(), _get_warn_only()),
    lambda pair: _set_flag(pair[0], warn_only=pair[1]),
    choose=lambda pair: torch.use_deterministic_algorithms(pair[0], warn_only=pair[1]),
    needed=(True, False),
)
FILL = Setting(_get_fill, _set_fill, needed=True)
CUDNN_DETERMINISTIC = Setting(torch._C._get_cudnn_deterministic, torch._C._set_cudnn_deterministic)
CUDNN_BENCHMARK = Setting(_get_benchmark, torch._C._set_cudnn_benchmark, needed=False)
INDUCTOR_DETERMINISTIC: Setting[bool | None] = Setting(
    lambda: getattr(_inductor_config(), "deterministic", None),
    _set_inductor,
    is_local=_inductor_is_local,
)


# PyTorch's record of entered modes, by which it compiles nothing inside them. It restores the
# record mode by mode, as if only one thread entered modes.
_IN_MODES = [
    name
    for name in (
        "_is_in_torch_dispatch_mode",
        "_is_in_non_infra_torch_dispatch_mode",
        "_is_in_any_mode_without_ignore_compile_internals",
    )
    if hasattr(_python_dispatch, name)
]


def _set_in_modes(values: list[bool]) -> None:
    for name, value in zip(_IN_MODES, values):
        setattr(_python_dispatch, name, value)
    if len(_IN_MODES) == 3:
        torch._C._dynamo.guards.set_is_in_mode_without_ignore_compile_internals(values[2])


IN_MODES = Setting(lambda: [getattr(_python_dispatch, name) for name in _IN_MODES], _set_in_modes)


def choose_for_block(warn_only: bool, fill_uninitialized_memory: bool | None, undo: Undo) -> None:
    """Choose the settings of an entered mode, until ``undo`` runs."""
    IN_MODES.save(undo)
    INDUCTOR_DETERMINISTIC.save(undo)
    FLAG.choose((True, warn_only), undo)
    CUDNN_DETERMINISTIC.choose(True, undo)
    CUDNN_BENCHMARK.choose(False, undo)
    if fill_uninitialized_memory is not None:
        FILL.choose(fill_uninitialized_memory, undo)


def _after_fork() -> None:
    for setting in _settings:
        setting._forked()


if hasattr(os, "register_at_fork"):
    # After the locks: functions registered later run later.
    os.register_at_fork(after_in_child=_after_fork)
