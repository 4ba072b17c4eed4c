"""The levels of modes: one for each time that a mode is entered and not yet left."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detmode.mode.base_mode import BaseMode
from detmode.mode.dispatch_stack import acting, take_off
from detmode.mode.interception import Interception
from detmode.mode.listed_operators import Place
from detmode.mode.overload_info import OverloadInfo
from detmode.process.dispatch import carried, carry
from detmode.process.threads import Follower, follow_threads
from detmode.process.undo import Undo
from detmode.sites.forward_memory import ForwardMemory, forward_memory

_LEVELS = "detmode.levels"
_is_kept, _get = torch._C._is_key_in_tls, torch._C._get_obj_in_tls

_local = threading.local()


class Level(Interception):
    """One entering of a mode, in the thread that makes the object.

    Attributes:
        thread: the number of that thread.
        kernels: the facts that the kernels of listed operators know, if they hand the calls over.
        counts_native: true if it counts native calls, too, without a price for them.
        owner: of one that acts in a thread that has not entered the mode, the level of the block.
    """

    counts_native = False
    owner: Level | None = None

    def __init__(self, mode: BaseMode) -> None:
        super().__init__(mode)
        self.thread = threading.get_ident()
        self.kernels: dict[Callable[..., Any], OverloadInfo | None] = {}

    def __repr__(self) -> str:
        """Return the mode's arguments, as PyTorch shows what is on its stack."""
        return repr(self.mode)

    def become_innermost(self, undo: Undo) -> None:
        """Make this level the innermost one of the current thread until ``undo`` runs."""
        outer = levels_here()
        undo.note(functools.partial(_leave, self, outer))
        self.set_innermost(True)
        outer.append(self)
        if len(outer) > 1:
            outer[-2].set_innermost(False)

    def set_innermost(self, is_innermost: bool) -> None:
        """Note whether this level is the innermost one of its thread."""
        self.is_innermost = is_innermost

    def receive_all(self, follower: Follower, undo: Undo) -> None:
        """Have PyTorch pass each call of the current thread to this level until ``undo`` runs.

        Args:
            follower: makes the block of threads that this one starts.
            undo: of the block.
        """
        undo.note(self._dismiss_guests)
        follow_threads(follower, undo)
        off = functools.partial(take_off, self, [])
        undo.note(functools.partial(undo.run_in_thread, off))
        TorchDispatchMode.__enter__(self)

    @property
    def decides_on_native(self) -> bool:
        """True if it decides on native calls, too, and leaves none to PyTorch's flag."""
        return self.counts_native or self.mode.decides_on_native

    def register_below(self, places: Iterable[Place]) -> None:
        """Note the kernels that stand at places, before detmode's are registered there."""

    def register_above(self, places: Iterable[Place], undo: list[Callable[[], object]]) -> None:
        """Put kernels above those of listed operators.

        Args:
            places: of the operators.
            undo: gets what takes each away, before it is there.
        """

    def decide_everywhere(self, decides: bool) -> None:
        """Note whether its mode decides in all threads, as the last one that lists and is open."""

    def end_block(self) -> None:
        """Note that the block, which lists, has ended."""

    def elsewhere(self, memory: ForwardMemory) -> Level:
        """Return the level as it acts in a thread that has not entered the mode.

        Args:
            memory: of that thread.
        """
        level = copy.copy(self)
        level.owner, level.memory = self, memory
        level.counter = self.counter.of_another_thread()
        return level

    def guest(self) -> Undo:
        """Return the block in which it acts in the current thread, which the level's has started.

        The settings are the process's, and chosen already.
        """
        level = self.elsewhere(forward_memory())
        self.mode.guests[id(level)] = level
        block = acting(level)
        level.become_innermost(block)
        return block

    def _dismiss_guests(self) -> None:
        """Let threads go on without the mode, whose block ends before them."""
        for reference in self.mode.guests.valuerefs():
            guest = reference()
            if guest is not None and guest.owner is self:
                guest.set_innermost(False)


def _leave(level: Level, stack: list[Level]) -> None:
    if level in stack:
        stack.remove(level)
    # Its thread may have yet to take it off the stack, if another one has left it.
    level.set_innermost(False)
    if stack:
        stack[-1].set_innermost(True)


def levels_here() -> list[Level]:
    """Return the levels that the current thread has entered, which its blocks change.

    PyTorch carries the list on to the autograd threads of this thread's backward.
    """
    levels: list[Level] | None = getattr(_local, "levels", None)
    if levels is None:
        levels = _local.levels = []
    carry(_LEVELS, levels)
    return levels


def open_levels() -> list[Level]:
    """Return the levels of the current thread, or of the one whose backward this is."""
    levels: list[Level] | None = carried(_LEVELS)
    return levels or []


def innermost() -> Level | None:
    """Return the innermost level of the current thread, or of the one whose backward this is."""
    # As open_levels does, without its calls: each listed call asks.
    levels: list[Level] = _get(_LEVELS) if _is_kept(_LEVELS) else []
    return levels[-1] if levels else None


def innermost_mode() -> BaseMode | None:
    """Return the mode of the level that :func:`innermost` returns."""
    level = innermost()
    return None if level is None else level.mode
