"""Calls that the player in C++ makes for ``intercept="listed"``, and what Python teaches it.

Its kernels stand above those of :mod:`detmode.mode.listed`. A call that the player does not know
comes to Python as ever. Where that runs a substitute, or PyTorch's deterministic path, it may leave
the player what the next such call needs: the plan of the launcher, which is recorded when the
arguments are met again, or that ATen makes the call; and the row in which calls at such a place are
counted. What the player has made it writes to a log, from
which Python counts before it counts a call itself, and before a report.

The player acts while one mode decides in all threads, and no allow region is open, and no override
names a forward: what the decision on a call then depends on is in its key. All else is Python's.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from detmode.cuda import native
from detmode.cuda.native import host_steps
from detmode.mode.decide import Decision
from detmode.mode.handled import Handled, Located
from detmode.mode.levels import Level
from detmode.mode.native_log import NativeMemory, count_calls
from detmode.mode.native_ops import ops_at, share_of
from detmode.mode.native_plans import Taught
from detmode.mode.overload_info import OverloadInfo
from detmode.process.dispatch import untrace_dispatch
from detmode.process.setting import all_settings, outside_python
from detmode.sites.native_memory import process

if TYPE_CHECKING:
    from detmode.mode.base_mode import BaseMode
    from detmode.mode.listed_operators import Place

# pytest and IPython leave out frames of this module: the line of the program is what matters.
__tracebackhide__ = True


class NativeLevel(Level):
    """A level some of whose calls the player makes."""

    player: native.Player
    taught: Taught
    counts_native = True

    __torch_dispatch__ = Level.__torch_dispatch__

    def intercept(
        self,
        overload: OverloadInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        traced: bool,
        site: str | None = None,
    ) -> Any:
        """Intercept a call, which is counted after those that the player has made."""
        count_calls()
        if overload.plans is not None and self.taught.is_wanted(overload.func):
            # Else the player in Python would make it, and this one learn nothing.
            overload = copy.copy(overload)
            overload.plans = None
        return super().intercept(overload, args, kwargs, traced, site)

    def meet(self, func: Any, overload: OverloadInfo | None) -> None:
        """Leave to the player what it can do of the calls of an overload."""
        if isinstance(func, torch._ops.OpOverload):
            self.taught.share(func, share_of(self.mode.table, func, overload))

    def set_innermost(self, is_innermost: bool) -> None:
        """Have the player share in the calls that the level receives while it is innermost."""
        super().set_innermost(is_innermost)
        if not self.intercepts_listed:
            self.taught.follow(self, is_innermost)

    def register_below(self, places: Iterable[Place]) -> None:
        """Note the kernels that stand at places, which make native calls."""
        for number, is_made in ops_at(self.player, self.mode.table, tuple(places)):
            self.player.dm_prepare(number, is_made)

    def register_above(self, places: Iterable[Place], undo: list[Callable[[], object]]) -> None:
        """Put the player's kernels above those at places."""
        for number, _ in ops_at(self.player, self.mode.table, tuple(places)):
            undo.append(functools.partial(self.player.dm_unregister, number))
            self.player.dm_register(number)

    def decide_everywhere(self, decides: bool) -> None:
        """Have the player act for this block while its mode decides in all threads."""
        self.taught.activate(decides, is_here=self.thread == threading.get_ident())

    def end_block(self) -> None:
        """End what the player does for the block, and count what it has done."""
        self.taught.activate(False)
        count_calls()

    def perform(self, call: Handled, decision: Decision) -> Any:
        """Carry out the decision, and teach the player what it does not know."""
        is_substituted = decision.action == "substitute" and call.launches_on is not None
        is_known = is_substituted or decision.action == "native"
        wanted = self.taught.is_wanted(call.func) if is_known and not decision.unavailable else 0
        if not wanted:
            return super().perform(call, decision)
        run = functools.partial(super().perform, call, decision)
        return self.taught.perform(call, decision, run, wanted)

    def note(self, call: Located, number: int) -> None:
        """Note the place of a call, and teach it the player."""
        super().note(call, number)
        self.taught.learn_place(call)

    def let_run(self, call: Handled) -> Any:
        """Make a call that is not counted, and teach the player that it is not."""
        self.taught.learn_passed(call)
        return super().let_run(call)


untrace_dispatch(NativeLevel)


def level_for(mode: BaseMode) -> Level:
    """Return a level of a mode: with the player, where it is built and may act."""
    player = native.player()
    if player is None or mode.forwards_overridden or not mode.policy.substitute:
        return Level(mode)
    if process.native_memory is None:
        _attach(player)
    taught: Taught | None = mode.taught
    if taught is None:
        taught = mode.taught = Taught(player, mode)
        mode.overloads.clear()  # of overloads that were met before, the player is to know, too
    level = NativeLevel(mode)
    level.player, level.taught = player, taught
    return level


def _attach(player: native.Player) -> None:
    """Connect the player with this process, once."""
    process.native_memory = NativeMemory(player)
    if process.had_regions:
        player.dm_marks(1, 0)  # so that it does not take their forwards for what is not allowed
    process.native_memory.follow_marks()
    player.dm_host_step(host_steps.make)
    player.dm_register_for_modes()
    numbers = [ctypes.pointer(setting.holds) for setting in all_settings]
    player.dm_holds((ctypes.POINTER(ctypes.c_int) * len(numbers))(*numbers), len(numbers))
    outside_python.here = player.dm_native_here
    outside_python.elsewhere = player.dm_native_elsewhere
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=count_calls, after_in_child=player.dm_after_fork)
