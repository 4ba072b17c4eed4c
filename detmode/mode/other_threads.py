"""Counting the calls of other threads, which a mode does not see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detmode.bits.tensors import is_foreign
from detmode.mode.dispatch_stack import acting
from detmode.mode.higher_order import with_bodies
from detmode.mode.levels import innermost
from detmode.process.dispatch import CompiledInside, caller_of, resolve_views, with_tensors
from detmode.process.undo import Undo
from detmode.reports.page import plural

# pytest and IPython leave out frames of this module: the line of the program is what matters.
__tracebackhide__ = True

_NAMED = 3
"""The most operators that a text names."""

Name = Callable[[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]], str | None]
"""Returns the name under which a call counts; ``None`` if it does not count."""


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
