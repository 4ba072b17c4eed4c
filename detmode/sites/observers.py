"""Modes that observe whole calls, including those that an inner mode substitutes."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from detmode.process.dispatch import CompiledInside, autocast_inside, trace_paused
from detmode.process.patched import Patched
from detmode.sites.native_memory import process
from detmode.table.call_site import CallSite

_count_modes = torch._C._len_torch_dispatch_stack


class _Thread(threading.local):
    is_inside: bool = False
    """True while the thread is inside an observed call, whose inner calls are not observed."""


class Observer(CompiledInside):
    """A mode that sees whole calls, including those that a mode inside it substitutes.

    Autograd's threads, one for each GPU, make calls at the same time. A forked process, such as a
    worker of a ``DataLoader``, inherits the mode and its open files, and is not observed.
    """

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self._thread = _Thread()
        self._lock = threading.Lock()
        self._is_inherited = False
        _observers.add(self)

    def observe(
        self,
        func: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[..., Any],
        place: CallSite | None = None,
    ) -> Any:
        """Observe one call, which ``run(*args, **kwargs)`` makes, and return its result.

        Its inner calls are not observed. ``place`` is given for compiled code, in which the user
        has no frame.
        """
        if self._thread.is_inside:
            return run(*args, **kwargs)
        self._thread.is_inside = True
        try:
            with autocast_inside(func), trace_paused():
                return self._observe(func, args, kwargs, run, place)
        finally:
            self._thread.is_inside = False

    def _observe(
        self,
        func: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[..., Any],
        place: CallSite | None,
    ) -> Any:
        """Observe a call that is not inside another one."""
        raise NotImplementedError

    def observe_graph(self, compiled: Any, inputs: Any, run: Callable[[Any], Any]) -> Any:
        """Observe the call of a graph, which ``run(inputs)`` makes, and return its results.

        Its inner calls are observed too.
        """
        raise NotImplementedError

    def observe_resize(self, storage: torch.UntypedStorage, run: Callable[[], Any]) -> Any:
        """Observe the resizing of a storage, which ``run()`` carries out, and return its result."""
        return run()

    def observe_copy(
        self, storage: torch.UntypedStorage, source: torch.UntypedStorage, run: Callable[[], Any]
    ) -> Any:
        """Observe a copy of all bytes of one storage to another, and return its result."""
        return run()


_observers: weakref.WeakSet[Observer] = weakref.WeakSet()


def _after_fork() -> None:
    for observer in _observers:
        observer._is_inherited = observer._thread.is_inside = True
        observer._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def observer() -> Observer | None:
    """Return the innermost observer around the current mode, also in autograd's threads."""
    for mode in reversed(_get_current_dispatch_mode_stack()):
        if isinstance(mode, Observer):
            return mode
    return None


def _resize_shown(resize: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(resize)
    def observed(storage: torch.UntypedStorage, size: int) -> Any:
        seen_by = observer() if _count_modes() else None
        if seen_by is None:
            return resize(storage, size)
        return seen_by.observe_resize(storage, partial(resize, storage, size))

    return observed


def _copy_shown(copy: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(copy)
    def observed(storage: torch.UntypedStorage, source: Any, *options: Any, **named: Any) -> Any:
        seen_by = observer() if _count_modes() else None
        run = partial(copy, storage, source, *options, **named)
        return run() if seen_by is None else seen_by.observe_copy(storage, source, run)

    return observed


STORAGE_METHODS = (
    Patched(lambda: torch.UntypedStorage, "resize_", _resize_shown),
    Patched(lambda: torch.UntypedStorage, "copy_", _copy_shown),
)
"""The methods that change storages, and show it to the innermost observer: no operator does."""


class _Repetition(threading.local):
    actions: list[str] | None = None


repetition = _Repetition()
"""While the calls that the thread makes repeat one of the program: a mode's actions on them."""


def _not_again(show: Callable[..., None]) -> Callable[..., None]:
    """Return a function that shows a warning, unless the thread repeats calls."""

    @wraps(show)
    def shown(*message: Any) -> None:
        if repetition.actions is None:
            show(*message)

    return shown


_SHOWING = Patched(lambda: warnings, "_showwarnmsg", _not_again)
"""The function by which Python shows a warning that its filters do not stop.

The filters belong to all threads, and whoever changes them for a moment, as ``catch_warnings``
does, takes what another thread has put there for what was there before.
"""


@contextmanager
def repeated() -> Iterator[list[str]]:
    """Mark the calls in the block as repeats of the program's calls, which no report counts.

    Warnings of the thread are not shown.

    Yields:
        The actions on them of a mode that they go through.
    """
    saved = repetition.actions
    actions: list[str] = []
    ongoing = object()
    try:
        _SHOWING.enter(ongoing)
        process.mark(process.repetitions, ongoing, True)
        repetition.actions = actions
        yield actions
    finally:
        repetition.actions = saved
        process.mark(process.repetitions, ongoing, False)
        _SHOWING.leave(ongoing)
