"""Interception of listed operators only, by kernels at the dispatch keys of backends.

A dispatch mode receives every call of its thread, and so taxes every call. A kernel that is
registered for an operator receives the calls of that operator alone: of any thread, and those that
C++ code makes. The kernels belong to the process. They are registered when the first block that
needs them is entered, and gone with the last one: if they stayed, they would tax the calls between
blocks. Each asks which mode acts where it is called, and hands the call to the same code as a
dispatch mode does.

A call reaches such a kernel below autograd, as it would reach a dispatch mode, so that the numbers
of autograd nodes mean the same. Its tensors have data and no foreign class: subclasses, fake
tensors, transforms of ``torch.func`` and functionalization have keys above, and call again for what
they are made of; conjugate and negative views are resolved above as well. Meta tensors have no
bits, and their kernels stay PyTorch's own.
"""

from __future__ import annotations

import copy
import functools
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet

from detmode.mode import changed_settings
from detmode.mode.base_mode import BaseMode
from detmode.mode.handled import Located
from detmode.mode.levels import Level, innermost
from detmode.mode.listed_operators import (
    DECIDE,
    DECIDE_ABOVE,
    NOTE,
    Libraries,
    Place,
    Places,
    libraries,
    places,
)
from detmode.mode.overload_info import COMPOSITE, OverloadInfo
from detmode.mode.substitution import on_host
from detmode.process.dispatch import (
    CONJUGATE,
    NEGATIVE,
    carried,
    carry,
    own_calls,
    resolve_views,
    set_excluded,
    traced_caller,
    untraced,
)
from detmode.process.undo import Lock, Undo
from detmode.sites.forward_memory import forward_memory
from detmode.table import twins
from detmode.table.rule_table import resolve

__tracebackhide__ = True

AVAILABLE = hasattr(torch.library, "get_kernel")
"""False for PyTorch 2.8, in which a kernel cannot call the one in whose place it is."""

UNAVAILABLE = 'intercept="listed" needs PyTorch 2.9 or newer: every call is intercepted'

_GUEST = "detmode.guest"
_UNSEEN: Any = object()
_get_sequence_nr = torch._C._autograd._get_sequence_nr
_count_modes = torch._C._len_torch_dispatch_stack
_get_mode = torch._C._get_dispatch_mode
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_FAKE = torch._C._TorchDispatchModeKey.FAKE


def _above_modes() -> DispatchKeySet:
    """Return the keys that are excluded in a dispatch mode; it resolves views itself."""
    # Not PythonTLSSnapshot: without it PyTorch 2.9 fails in a mode that is entered there.
    above = torch._C._dispatch_keyset_full() - torch._C._dispatch_keyset_full_after(
        DispatchKey.Python
    )
    for key in ("Python", "PythonTLSSnapshot", "Conjugate", "Negative"):
        above = above.remove(getattr(DispatchKey, key))
    return above


# Substitutes and ATen's kernels run as in a dispatch mode: neither autograd, which an operator
# without a derivative leaves on, nor autocast, nor a transform applies to what they call.
_ExcludeKeys = torch._C._ExcludeDispatchKeyGuard
_ABOVE_MODES = _above_modes()


class _Batch:
    """Kernels that were registered together, and what takes away those above them."""

    def __init__(self) -> None:
        # By their labels.
        self.places: dict[str, Place] = {}
        # By namespace. PyTorch's own objects: those of torch.library take twice as long.
        self.libraries: dict[str, Any] = {}
        # An interrupt may strike while they are registered.
        self.is_complete = False
        self.undo: list[Callable[[], object]] = []

    def register(self, places: Places, level: Level) -> None:
        """Register a kernel at each place, for the level that needs them first."""
        level.register_below(places)
        for place, kernel in _kernels_for(places):
            namespace = place.namespace
            if namespace not in self.libraries:
                self.libraries[namespace] = torch._C._dispatch_library(
                    "IMPL", namespace, "", __file__, 0
                )
            self.libraries[namespace].impl(place.name, place.key, kernel, place.is_above)
        self.places = {place.label: place for place in places}
        level.register_above(places, self.undo)
        self.is_complete = True

    def destroy(self) -> None:
        """Give the operators their own kernels back."""
        for undo in self.undo:
            undo()
        for library in self.libraries.values():
            library.reset()


_has_overridden = False
"""True once a kernel of the process stood in the place of another."""
_lock = Lock()
_levels: list[Level] = []
"""The open levels of all threads, in the order in which they were entered."""
_batches: list[_Batch] = []


def enter(level: Level, undo: Undo) -> None:
    """Intercept calls for ``level`` until ``undo`` runs.

    Raises:
        RuntimeError: a block of another thread has other arguments.
    """
    undo.note(functools.partial(_lock.run, _leave, level))
    _lock.run(_enter, level)
    level.mode.counts_native = level.counts_native and level.mode.counts_native is not False
    if not level.decides_on_native:
        undo.note(functools.partial(changed_settings.note_at_end, level.mode))
        changed_settings.watch(level, level.mode)


def _enter(level: Level) -> None:
    global _has_overridden
    mode = level.mode
    for entered in _levels:
        if entered.thread != level.thread and _choices(entered.mode) != _choices(mode):
            raise RuntimeError(
                'DeterministicMode(intercept="listed") intercepts the calls of all threads, and '
                "another thread is in such a block with other rules, overrides or arguments: give "
                'both blocks the same RuleTable object and arguments, or use intercept="all"'
            )
    _levels.append(level)
    missing = places(mode.table, mode.overrides, level.decides_on_native, mode.simulate)
    for batch in _batches:
        missing = tuple(place for place in missing if place.label not in batch.places)
    if missing:
        batch = _Batch()
        _batches.append(batch)
        register = functools.partial(Undo(_warn_once).around, batch.register, missing, level)
        if _has_overridden or not any(_has_kernel(x.func.name(), x.key) for x in missing):
            register()
        else:
            # After a change of the filters Python shows all warnings again: a program with a block
            # for each step, and a filter in each block, would be warned at each step.
            with warnings.catch_warnings():
                # PyTorch warns, once in a process, that kernels are overridden.
                warnings.filterwarnings("ignore", "Warning only once for all operators")
                register()
            _has_overridden = True
    _follow()


def _warn_once(undo: Undo) -> None:
    """Have PyTorch give once what it warns about once, even if the program wants it always."""
    undo.note(functools.partial(torch.set_warn_always, torch.is_warn_always_enabled()))
    torch.set_warn_always(False)


def _choices(mode: BaseMode) -> tuple[Any, ...]:
    """Return what decides about a call of a thread that has entered no block."""
    overrides = mode.overrides, mode.module_overrides
    return (id(mode.table), overrides, mode.policy, mode.simulate)


def _leave(level: Level) -> None:
    if level in _levels:
        _levels.remove(level)
    level.end_block()
    _follow()
    level.kernels.clear()
    changed_settings.unwatch(level)
    for batch in list(_batches):
        if not _levels or not batch.is_complete:
            batch.destroy()
            _batches.remove(batch)


def _follow() -> None:
    """Tell the open levels whether one table decides in all threads: that of the last of them."""
    are_one = len({x.thread for x in _levels}) < 2 or len({id(x.mode) for x in _levels}) < 2
    for level in _levels:
        level.decide_everywhere(are_one and level is _levels[-1])


def registered(op: str) -> bool:
    """Return whether calls of an operator are intercepted, on some device."""
    func = resolve(op)
    return func is not None and any(
        place.decides and place.func is func
        for batch in _batches
        for place in batch.places.values()
    )


# Calls


_Kernel = Callable[..., Any]
_kept: dict[str, _Kernel] = {}
"""Kernels for the next blocks: to make them takes longer than to register them."""
_kept_for: Libraries | None = None
"""The libraries whose kernels the kept ones call."""
_ALIASES = ("Autograd", "CompositeExplicitAutograd", COMPOSITE.name)


def _kernels_for(places: Places) -> Iterator[tuple[Place, _Kernel]]:
    """Make a kernel for each place, or return the kept one.

    What Python code has registered it may have replaced since: what calls that is not kept.
    """
    global _kept_for
    if _kept_for != (loaded := libraries()):
        _kept.clear()
        _kept_for = loaded
    entries = _in_python(places)
    uncertain = {entries[entry] for entry in torch.library._impls & entries.keys()}
    for place in places:
        kernel = _kept.get(place.label)
        if kernel is None or place in uncertain:
            kernel = _MAKERS[place.task](place)
            if place not in uncertain:
                _kept[place.label] = kernel
        yield place, kernel


@functools.lru_cache(8)
def _in_python(places: Places) -> dict[str, Place]:
    """Return the entries that PyTorch would have of kernels in Python that reach a place."""
    return {
        f"{place.namespace}/{place.name}/{key}": place
        for place in places
        for key in (place.key, *_ALIASES)
    }


def _deciding(place: Place) -> _Kernel:
    """Return the kernel that hands the calls of an overload to the mode that acts."""
    func, key = place.func, place.key
    original = torch.library.get_kernel(func, key)
    boxed = functools.partial(original.call_boxed, DispatchKeySet(getattr(DispatchKey, key)))
    run = traced_caller(func, boxed)

    @untraced
    def kernel(*args: Any, **kwargs: Any) -> Any:
        level = acting()
        if level is None:
            return run(*args, **kwargs)
        overload = level.kernels.get(run, _UNSEEN)
        if overload is _UNSEEN:
            overload = level.mode.overload_info(func)
            if overload is not None:
                simulated = level.mode.simulate is not None
                overload = _with_run(overload, on_host(overload, run) if simulated else run)
            level.kernels[run] = overload
            level.mode.meet(args, kwargs)
        if overload is None:
            return run(*args, **kwargs)
        with _ExcludeKeys(_ABOVE_MODES):
            # As resolve_views does, without its call.
            set_excluded(CONJUGATE, False)
            set_excluded(NEGATIVE, False)
            return level.intercept(overload, args, kwargs, False)

    return kernel


def _deciding_above(place: Place) -> _Kernel:
    """Return the kernel at autograd's key that hands the program's own calls to the mode."""
    original = torch.library.get_kernel(place.func, place.key).call_boxed

    @untraced
    def kernel(keys: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        level = None if _is_traced() else acting()
        overload = level.mode.overload_info(place.func) if level is not None else None
        if level is None or overload is None:
            return original(keys, *args, **kwargs)
        overload = _with_run(overload, functools.partial(original, keys))
        return level.intercept(overload, args, kwargs, False)

    return kernel


def _noting(place: Place) -> _Kernel:
    """Return the kernel at autograd's key that notes where a call has made its node."""
    original = torch.library.get_kernel(place.func, place.key).call_boxed

    @untraced
    def kernel(keys: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        number = _get_sequence_nr()
        result = original(keys, *args, **kwargs)
        if _get_sequence_nr() != number and not _is_traced():
            _note(place.func, number)
        return result

    return kernel


def _note(func: torch._ops.OpOverload, number: int) -> None:
    level = acting()
    overload = level.mode.overload_info(func) if level is not None else None
    if level is not None and overload is not None:
        level.note(Located(overload), number)


_MAKERS = {DECIDE: _deciding, DECIDE_ABOVE: _deciding_above, NOTE: _noting}


def _is_traced() -> bool:
    """Return whether calls are traced: what they stand for is called later."""
    return bool(_count_modes()) and _get_mode(_FAKE) is not None


def _with_run(overload: OverloadInfo, run: Callable[..., Any]) -> OverloadInfo:
    overload = copy.copy(overload)
    overload.run = run
    return overload


def acting() -> Level | None:
    """Return the level that decides on a call made here; ``None`` if none does, or it has already.

    A thread that has entered no mode belongs to the block that was entered last.
    """
    if own_calls.here():
        return None
    level = innermost()
    if level is not None:
        # A dispatch mode has decided before.
        return level if level.intercepts_listed else None
    return _guest_of(_levels[-1]) if _levels else None


def _guest_of(level: Level) -> Level:
    """Return the level as it acts in a thread that has not entered it: with the thread's memory."""
    guest: Level | None = carried(_GUEST)
    if guest is None or guest.owner is not level:
        guest = level.elsewhere(forward_memory() if guest is None else guest.memory)
        carry(_GUEST, guest)
    return guest


def _receive(twin: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    level = acting()
    overload = level.mode.overload_info(twin) if level is not None else None
    if level is None or overload is None:
        return NotImplemented
    with _ExcludeKeys(_ABOVE_MODES):
        resolve_views()
        return level.call_twin(overload, False, args, kwargs)


twins.receive = _receive


def _after_fork() -> None:
    # Blocks of threads that no longer exist would never end.
    for level in list(_levels):
        if level.thread != threading.get_ident():
            _leave(level)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
