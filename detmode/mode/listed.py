"""Interception of listed operators alone, by kernels at the dispatch keys of backends.

A dispatch mode receives every call of its thread, and so taxes every call. A kernel that is
registered for an operator receives the calls of that operator alone: of any thread, and those that
C++ code makes. The kernels belong to the process: they are registered when the first block that
needs them is entered, and gone with the last one. Each asks which mode acts where it is called, and
hands the call to the same code as a dispatch mode does.

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
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch._C import DispatchKey, DispatchKeySet

from detmode.cuda.undo import Lock, Undo
from detmode.environment.dispatch import carried, carry, own_calls, resolve_views, untraced
from detmode.mode.interception import facts_of
from detmode.mode.levels import innermost
from detmode.mode.options import means_unlisted
from detmode.mode.substitution import on_host
from detmode.sites.forward_memory import forward_memory
from detmode.table import twins
from detmode.table.names import matches
from detmode.table.overload_info import COMPOSITE, OverloadInfo
from detmode.table.rule import Native, Refuse, Substitute
from detmode.table.rule_table import TORCH_VERSION, FamilyRule, RuleTable, resolve

if TYPE_CHECKING:
    from detmode.mode.deterministic_mode import DeterministicMode

# pytest and IPython leave out frames of this module: the line of the program is what matters.
__tracebackhide__ = True

AVAILABLE = hasattr(torch.library, "get_kernel")
"""False for PyTorch 2.8, in which a kernel cannot call the one in whose place it is."""

UNAVAILABLE = 'intercept="listed" needs PyTorch 2.9 or newer: every call is intercepted'

_KEYS = [
    (layout + device.upper(), device, layout.startswith("Sparse"))
    for device in ("cpu", "cuda", "mps")
    for layout in ("", "Sparse", "SparseCsr", "Quantized")
    if torch._C._parse_dispatch_key(layout + device.upper()) is not None
    and (device != "cuda" or torch.backends.cuda.is_built())
]
"""Dispatch keys of backends: the device type of their tensors, and whether those are sparse."""

_FILLING = "uninitialized_memory"
"""The family of operators that return new memory."""

_GUEST = "detmode.guest"
_UNSEEN: Any = object()


def _above_modes() -> DispatchKeySet:
    """Return the keys that are excluded in a dispatch mode; it resolves views itself."""
    above = torch._C._dispatch_keyset_full() - torch._C._dispatch_keyset_full_after(
        DispatchKey.Python
    )
    for key in (DispatchKey.Python, DispatchKey.Conjugate, DispatchKey.Negative):
        above = above.remove(key)
    return above


# Substitutes and ATen's kernels run as in a dispatch mode: neither autograd, which an operator
# without a derivative leaves on, nor autocast, nor a transform applies to what they call.
_as_in_a_mode = functools.partial(torch._C._ExcludeDispatchKeyGuard, _above_modes())


class _Batch:
    """Kernels that were registered together.

    Attributes:
        names: of the overloads and keys.
        libraries: the owners of the registrations, by namespace.
        is_complete: false if an interrupt struck while they were registered.
    """

    def __init__(self) -> None:
        self.names: set[tuple[str, str]] = set()
        self.libraries: dict[str, torch.library.Library] = {}
        self.is_complete = False

    def register(self, overloads: Iterable[tuple[torch._ops.OpOverload, str]]) -> None:
        """Register a kernel for each overload and key."""
        for func, key in overloads:
            library = self.libraries.get(func.namespace)
            if library is None:
                library = torch.library.Library(func.namespace, "IMPL")
                self.libraries[func.namespace] = library
            # Libraries may have overridden ATen's kernel; before 2.13 a second one had to insist.
            library.impl(func, _kernel(func, key), key, allow_override=True)
            self.names.add((func.name(), key))
        self.is_complete = True

    def destroy(self) -> None:
        """Give the operators their own kernels back."""
        for library in self.libraries.values():
            library._destroy()


_lock = Lock()
_levels: list[DeterministicMode] = []
"""The open levels of all threads, in the order in which they were entered."""
_batches: list[_Batch] = []


def enter(level: DeterministicMode, undo: Undo) -> None:
    """Intercept calls for ``level`` until ``undo`` runs.

    Raises:
        RuntimeError: a block of another thread has other arguments.
    """
    undo.note(functools.partial(_lock.run, _leave, level))
    _lock.run(_enter, level)


def _enter(level: DeterministicMode) -> None:
    level.entered_in = threading.get_ident()
    for other in _levels:
        if other.entered_in != level.entered_in and _choices(other) != _choices(level):
            raise RuntimeError(
                'DeterministicMode(intercept="listed") intercepts the calls of all threads, and '
                "another thread is in such a block with other rules, overrides or arguments: give "
                'both blocks the same RuleTable object and arguments, or use intercept="all"'
            )
    _levels.append(level)
    known = {name for batch in _batches for name in batch.names}
    missing = [(func, key) for func, key in _overloads_of(level) if (func.name(), key) not in known]
    if missing:
        batch = _Batch()
        _batches.append(batch)
        with warnings.catch_warnings():
            # PyTorch warns, once in a process, that kernels are overridden.
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            batch.register(missing)


def _choices(level: DeterministicMode) -> tuple[Any, ...]:
    """Return what decides about a call of a thread that has entered no block."""
    return (id(level._table), level._overrides, level._policy, level._simulate)


def _leave(level: DeterministicMode) -> None:
    if level in _levels:
        _levels.remove(level)
    level.kernels.clear()
    for batch in list(_batches):
        if not _levels or not batch.is_complete:
            batch.destroy()
            _batches.remove(batch)


def registered(op: str) -> bool:
    """Return whether calls of an operator are intercepted, on some device."""
    func = resolve(op)
    return func is not None and any(
        name == func.name() for batch in _batches for name, _ in batch.names
    )


# Which operators


_Overloads = dict[tuple[torch._ops.OpOverload, str], None]
"""Overloads, each with the key of a kernel; a set with an order."""


def _overloads_of(level: DeterministicMode) -> _Overloads:
    """Return the overloads and keys for which the level needs kernels, if they can have one."""
    names = tuple(torch._C._dispatch_get_all_op_names())
    table, overrides = level._table, tuple(level._overrides.items())
    found = _listed(names, table, level._policy.warn_only, level._simulate)
    return found | _overridden(names, table, overrides) if overrides else found


@functools.lru_cache(8)
def _listed(
    names: tuple[str, ...], table: RuleTable, warn_only: bool, simulate: str | None
) -> _Overloads:
    """Return the overloads that need kernels for the rows of a table.

    Args:
        names: of all operators that are loaded.
        table: the table.
        warn_only: PyTorch's flag then leaves some of its deterministic paths off, so that native
            calls are intercepted too, and run strictly.
        simulate: the device type that CPU tensors have.
    """
    found: _Overloads = {}
    for key, device, sparse in _KEYS:
        pretended = simulate if simulate is not None and device == "cpu" else device
        rows = table.only(functools.partial(_acts, key, pretended, sparse, warn_only))
        for name in names:
            op = name.partition(".")[0]
            # The site of a backward call, and what is allowed there, are those of its forward.
            is_forward = rows.is_forward(op)
            func = resolve(name) if is_forward or rows.names(op) else None
            if func is None or not (is_forward or rows.get(func)):
                continue
            if _can_have_kernel(func, key):
                found[func, key] = None
    return found


@functools.lru_cache(8)
def _overridden(
    names: tuple[str, ...], table: RuleTable, overrides: tuple[tuple[str, str], ...]
) -> _Overloads:
    """Return the overloads to which overrides apply, on any device."""
    found: _Overloads = {}
    patterns = [pattern for pattern, _ in overrides if means_unlisted(pattern)]
    for name in names:
        op, _, overload = name.partition(".")
        spelt = (op, name if overload else f"{name}.default")
        func = resolve(name) if table.names(op) or matches(spelt, patterns) else None
        if func is None or facts_of(func, table, dict(overrides)).override is None:
            continue
        for key, _, _ in _KEYS:
            if _can_have_kernel(func, key):
                found[func, key] = None
    return found


def _acts(key: str, device: str, sparse: bool, warn_only: bool, row: FamilyRule) -> bool:
    """Return whether a row needs kernels at a key."""
    rule = row.rule
    actions: list[type] = [Refuse]
    if rule.when.needs_sparse or not sparse:  # other substitutes take dense tensors
        actions.append(Substitute)
    if warn_only:
        actions.append(Native)
    if row.family == _FILLING:  # PyTorch fills the memory of other tensors in any case
        actions = [Substitute] if key.startswith("Quantized") else []
    return (
        isinstance(rule.action, tuple(actions))
        and rule.holds_for(TORCH_VERSION)
        and rule.may_vary({device}, sparse)
    )


def _can_have_kernel(func: torch._ops.OpOverload, key: str) -> bool:
    """Return whether calls of the overload reach a kernel at the key.

    Autograd takes composite operators apart above it, which a kernel would keep it from doing.
    For quantized tensors ATen takes apart what has no kernel of its own.
    """
    name = func.name()
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key) or (
        not key.startswith("Quantized")
        and not torch._C._dispatch_has_kernel_for_dispatch_key(name, COMPOSITE)
        and torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, key)
    )


# Calls


def _kernel(func: torch._ops.OpOverload, key: str) -> Callable[..., Any]:
    """Return the kernel that hands the calls of an overload to the mode that acts."""
    original = torch.library.get_kernel(func, key)
    run = functools.partial(original.call_boxed, DispatchKeySet(getattr(DispatchKey, key)))

    @untraced
    def kernel(*args: Any, **kwargs: Any) -> Any:
        level = acting()
        if level is None:
            return run(*args, **kwargs)
        overload = level.kernels.get(run, _UNSEEN)
        if overload is _UNSEEN:
            overload = level.kernels[run] = _with_run(level, func, run)
        if overload is None:
            return run(*args, **kwargs)
        with _as_in_a_mode():
            resolve_views()
            return level._intercept(overload, args, kwargs, False)

    return kernel


def _with_run(
    level: DeterministicMode, func: torch._ops.OpOverload, run: Callable[..., Any]
) -> OverloadInfo | None:
    """Return the facts with ``run``, which makes calls without the registered kernel."""
    overload = level.overload_info(func)
    if overload is not None:
        overload = copy.copy(overload)
        overload.run = run if level._simulate is None else on_host(overload, run)
    return overload


def acting() -> DeterministicMode | None:
    """Return the level that decides on a call made here; ``None`` if none does, or it has already.

    A thread that has entered no mode belongs to the block that was entered last.
    """
    if own_calls.here():
        return None
    level = innermost()
    if level is not None:
        # A dispatch mode has decided before.
        return level if level.lists else None
    return _guest_of(_levels[-1]) if _levels else None


def _guest_of(level: DeterministicMode) -> DeterministicMode:
    """Return the level as it acts in a thread that has not entered it: with the thread's memory."""
    guest: DeterministicMode | None = carried(_GUEST)
    if guest is None or guest.host is not level:
        memory = forward_memory() if guest is None else guest._memory
        guest = level.again()
        guest.host, guest._memory = level, memory
        carry(_GUEST, guest)
    return guest


def _receive(twin: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Hand a call of compiled code to the mode that acts."""
    level = acting()
    overload = level.overload_info(twin) if level is not None else None
    if level is None or overload is None:
        return NotImplemented
    with _as_in_a_mode():
        resolve_views()
        return level._call_twin(overload, False, args, kwargs)


twins.receive = _receive


def _after_fork() -> None:
    # Blocks of threads that no longer exist would never end.
    for level in list(_levels):
        if level.entered_in != threading.get_ident():
            _leave(level)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
