"""The threads that a mode's thread starts: it acts in them, or counts the calls that it misses."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detmode.bits.tensors import is_foreign
from detmode.mode.dispatch_stack import acting, take_off
from detmode.mode.higher_order import with_bodies
from detmode.mode.levels import Level, innermost
from detmode.process.dispatch import CompiledInside, caller_of, resolve_views, with_tensors
from detmode.process.threads import Follower, follow_threads
from detmode.process.undo import Undo
from detmode.reports.page import plural
from detmode.sites.forward_memory import forward_memory

__tracebackhide__ = True

_NAMED = 3
"""The most operators that a text names."""

Name = Callable[[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]], str | None]
"""Returns the name under which a call counts; ``None`` if it does not count."""


def receive_all(level: Level, follower: Follower, undo: Undo) -> None:
    """Have PyTorch pass each call of the current thread to a level until ``undo`` runs."""
    undo.note(functools.partial(_dismiss_guests, level))
    follow_threads(follower, undo)
    off = functools.partial(take_off, level, [])
    undo.note(functools.partial(undo.run_in_thread, off))
    TorchDispatchMode.__enter__(level)


def guest_of(level: Level) -> Undo:
    """Return the block in which a level acts in the current thread, which its own has started.

    The settings are the process's, and chosen already.
    """
    guest = level.elsewhere(forward_memory())
    level.mode.guests[id(guest)] = guest
    block = acting(guest)
    guest.become_innermost(block)
    return block


def _dismiss_guests(level: Level) -> None:
    """Let threads go on without the mode, whose block ends before them."""
    for reference in level.mode.guests.valuerefs():
        guest = reference()
        if guest is not None and guest.owner is level:
            guest.set_innermost(False)


class Witness(CompiledInside):
    """Counts the calls that other threads make.

    Args:
        name: says which calls count.
        beside_modes: also count those of a thread in which a mode acts, and what it calls.
    """

    supports_higher_order_operators = True

    def __init__(self, name: Name, *, beside_modes: bool = False) -> None:
        TorchDispatchMode.__init__(self)
        self._name = name
        self._beside_modes = beside_modes
        self.counts: Counter[str] = Counter()

    def in_this_thread(self) -> Undo:
        """Return a block in which the calls of this thread are counted, unless a mode acts."""
        return acting(self)

    @property
    def total(self) -> int:
        """The number of calls so far."""
        return sum(dict(self.counts).values())

    def text(self) -> str | None:
        """Return what was counted, with the most frequent operators; ``None`` if nothing."""
        counts = Counter(dict(self.counts))
        if not counts:
            return None
        names = ", ".join(name for name, _ in counts.most_common(_NAMED))
        more = len(counts) - _NAMED
        names += f" and {more} more" if more > 0 else ""
        return f"{plural(counts.total(), 'call')} of other threads ({names})"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        resolve_views()
        if not isinstance(func, torch._ops.OpOverload):
            return func(*with_bodies(self, args), **kwargs)
        if any(map(is_foreign, types)):
            # A subclass desugars first; the operators that it runs are counted.
            return NotImplemented
        # A mode that the thread has entered makes calls of its own.
        if self._beside_modes or innermost() is None:
            name = self._name(func, args, kwargs)
            if name is not None:
                self.counts[name] += 1
        return caller_of(func)(*with_tensors(func, args), **kwargs)
