"""Calls that the player in C++ makes for ``intercept="listed"``, and what Python teaches it.

Its kernels stand above those of :mod:`detmode.mode.listed`. A call that the player does not know
comes to Python as ever. Where that runs a substitute, or PyTorch's deterministic path, it may leave
the player what the next such call needs: the plan of the launcher, which is recorded when the
arguments are met again, or that ATen makes the call; and the row in which calls at such a place are
counted. What the player has made it writes to a log, from which Python counts before it counts a
call itself, and before a report.

The player acts while one mode decides in all threads, and no allow region is open, and no override
names a forward: what the decision on a call then depends on is in its key. All else is Python's.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

from detmode.cuda import device, native
from detmode.cuda.native import host_steps
from detmode.cuda.plan import AtenCall, Check, Launch, Plan
from detmode.mode.base_mode import BaseMode
from detmode.mode.decide import Decision
from detmode.mode.handled import Handled, Located
from detmode.mode.levels import Level
from detmode.mode.listed_operators import Place
from detmode.mode.native_log import (
    ENTRIES,
    Entries,
    attach,
    count_calls,
    note_of,
    number_of,
    numbers,
)
from detmode.mode.native_ops import (
    funcs,
    learn_frames,
    op_for_modes,
    ops_at,
    playable,
    share_of,
)
from detmode.mode.overload_info import OverloadInfo
from detmode.mode.plans import is_captured, is_launcher, recording_of, refuse
from detmode.mode.row_counter import ModuleCalls
from detmode.process.dispatch import untrace_dispatch
from detmode.table.call_site import Note
from detmode.table.rule import Substitute

__tracebackhide__ = True

_NATIVE, _NEVER, _PASSED, _STRICT = [-1], [-2], [-3], [-4]
"""The words of a plan for ATen's own kernel, of one that there is not, for uncounted calls, and for
a kernel of ATen's that needs PyTorch's strict flag."""
_BY_VALUES = -5
"""The first word of those that say at which values to look, before there can be a plan."""
_PLANS = 1 << 13
"""The most plans that the player is taught; then it forgets everything, and learns again."""


class _Table:
    """The knowledge of the player until it forgets everything.

    Attributes:
        number: no other table has it.
        turn: the number of the blocks for which the player acts: threads join each.
        address: of the player's part, which lives as long as this, and as any thread that uses it.
        rows: the numbers of rows with decisions.
        entries: those that are only noted.
        left: the number of plans and entries that may yet be taught.
    """

    def __init__(self, player: native.Player) -> None:
        self.number = self.turn = next(numbers)
        self.rows: dict[tuple[Any, ...], int] = {}
        self.entries: Entries = {}
        self.left = {"plans": _PLANS, "entries": ENTRIES}
        self._steps: list[Any] = []
        self._owner = player.dm_table(self.number, self._steps)
        self.address: int = player.dm_table_of(self._owner)

    def row_of(self, *decided: Any) -> int:
        """Return the number of a row with a decision."""
        return self.rows.setdefault(decided, len(self.rows))

    def keep_step(self, function: Callable[..., Any]) -> int:
        """Return the address of a function, which lives as long as the plans."""
        self._steps.append(function)
        return id(function)


class _Taught:
    """The knowledge of the player for one mode, which it does not keep alive."""

    def __init__(self, player: native.Player, mode: BaseMode) -> None:
        self._player = player
        self._rules, self._counter, self._paths = mode.table, mode.counter, mode.counter.paths
        self._paths.on_rename = self.forget
        self._is_active = False
        self._shares: dict[int, int] = {}
        self._receivers: dict[int, Level] = {}
        # As many as the counter has: calls that are yet to be counted may be of any.
        self._entries: Entries = {}
        self._begin()

    def _begin(self) -> None:
        table = self._table = _Table(self._player)
        for number, share in list(self._shares.items()):
            self._player.dm_share(table.address, number, share)
        for address in list(self._receivers):
            self._player.dm_level(address, table.address)

    def activate(self, is_active: bool, *, is_here: bool = False) -> None:
        """Have the player act for the mode, or leave all calls to Python.

        Each time Python makes the first call of a thread, whose number it notes anew.

        Args:
            is_active: whether it acts.
            is_here: whether the current thread's block is the one for which it does, so that its
                calls are the mode's own.
        """
        self._is_active = is_active
        table = self._table
        if is_active:
            table.turn = next(numbers)
            self._player.dm_turn(table.address, table.turn, is_here)
        self._player.dm_activate(table.address if is_active else None)

    def follow(self, level: Level, is_receiver: bool) -> None:
        """Share in the calls that PyTorch passes to a level, or leave them to it."""
        table = self._table
        if is_receiver:
            self._receivers[id(level)] = level
        else:
            self._receivers.pop(id(level), None)
        self._player.dm_level(id(level), table.address if is_receiver else None)

    def share(self, func: torch._ops.OpOverload, share: int) -> None:
        """Share in the calls of an overload."""
        number = op_for_modes(self._player, func) if share else -1
        if number >= 0:
            self._shares[number] = share
            table = self._table
            self._player.dm_share(table.address, number, share)

    def forget(self) -> None:
        """Have the player forget everything, because there is too much or it no longer holds."""
        self._begin()
        if self._is_active:
            self.activate(True)

    def is_wanted(self, func: torch._ops.OpOverload) -> int:
        """Return what the call in this thread, of an overload, may teach, as ``dm_pending``."""
        wanted = self._wanted_of(func, self._table)
        # The kernel may be there for a block with another table.
        return wanted if wanted and playable(self._rules, func).is_in_key else 0

    def _wanted_of(self, func: torch._ops.OpOverload, table: _Table) -> int:
        pending: int = self._player.dm_pending(table.number)
        return pending & 3 if pending and funcs.get(pending >> 2) is func else 0

    def perform(
        self, call: Handled, decision: Decision, run: Callable[[], Any], wanted: int
    ) -> Any:
        """Make a call by its launcher, or by ATen, and teach the player what is wanted."""
        # Another thread may have the player forget it meanwhile.
        table = self._table
        row = table.row_of(call.row, decision)
        if decision.action == "native":
            result = run()
            if wanted == 2:
                self._add_words(table, _STRICT if call.reads_warn_only else _NATIVE, row)
        elif wanted >= 2 and not _is_recorded(call):
            result = run()
            self._add_words(table, _NEVER, row)
        elif wanted >= 2 and not is_captured(call.tensors):
            with recording_of(call) as recorder:
                result = run()
            plan = recorder.plan(result, may_look=True)
            if plan is not None and plan.looks and wanted == 2:
                self._add_words(table, [_BY_VALUES, *itertools.chain(*plan.looks)], row)
            else:
                self._add_plan(table, call, plan, recorder.problem, row)
        else:
            result = run()
        self._add_entry(table, call, self._counter.calls_of(call, decision), row)
        self._forget_if_full(table)
        return result

    def learn_passed(self, call: Handled) -> None:
        """Teach the player a call that is made by ATen, uncounted, and its place if it has one."""
        wanted = self.is_wanted(call.func)
        if not wanted:
            return
        table = self._table
        row = table.row_of(call.row, None)
        if wanted == 2:
            self._add_words(table, _PASSED, row)
        if call.site is not None:
            self._add_entry(table, call, None, row)
        self._forget_if_full(table)

    def learn_place(self, call: Located) -> None:
        """Teach the player the place of a call that is noted for its backward."""
        table = self._table
        if call.site is not None and self._wanted_of(call.func, table):
            self._add_entry(table, call, None, 0)
            self._forget_if_full(table)

    def _forget_if_full(self, table: _Table) -> None:
        if table is self._table and min(table.left.values()) <= 0:
            self.forget()

    def _add_plan(
        self, table: _Table, call: Handled, plan: Plan | None, problem: str | None, row: int
    ) -> None:
        words = None
        if call.func._schema.is_mutable and call.overload.variant != "inplace":
            problem = "it writes to what it is given"
        elif plan is not None and plan.device == call.launches_on:
            words = plan.words(functools.partial(self._number_of, table, call, plan))
        if words is None:
            refuse(
                call,
                problem or "it calls an operator that allocates, or that takes more than numbers",
            )
        self._add_words(table, words or _NEVER, row)

    def _add_words(self, table: _Table, words: list[int], row: int) -> None:
        table.left["plans"] -= 1
        packed = (ctypes.c_int64 * len(words))(*words)
        self._player.dm_add_plan(table.address, row, packed, len(words))

    def _number_of(
        self, table: _Table, call: Handled, plan: Plan, step: Launch | Check | AtenCall
    ) -> int:
        """Return a number for what the player launches or calls, or leaves to Python on the CPU."""
        if isinstance(step, AtenCall):
            return op_for_modes(self._player, step.func)
        if call.launches_on == "cuda":
            assert isinstance(step, Launch)
            index = call.tensors[0].get_device()
            return device.loaded(step.source, step.entry, index).function
        return table.keep_step(host_steps.function_of(step, plan))

    def _add_entry(
        self, table: _Table, call: Handled | Located, calls: ModuleCalls | None, row: int
    ) -> None:
        """Teach the row and the place of a call, if they hold for others like it."""
        assert call.site is not None
        self._player.dm_join(table.turn, calls is not None)
        is_logged = calls is not None and self._counter.logs(calls)
        if is_logged or not self._is_noted_as(call):
            return
        learn_frames(self._player, sys._getframe(), self._paths.known)
        note = Note(call.site, call.names, ())
        entries = table.entries if calls is None else self._entries
        number = number_of(entries, self._counter, calls, note)
        table.left["entries"] -= self._player.dm_add_entry(table.address, row, number)

    def _is_noted_as(self, call: Handled | Located) -> bool:
        """Return whether the player finds the forward of a call where Python has found it."""
        noted = note_of(self._player.dm_noted())
        return noted is None or bool(call.notes and call.notes[0].site == noted.site)


def _is_recorded(call: Handled) -> bool:
    """Return whether a plan of a substituted call may be recorded.

    A function of the user's may do what no plan has, and depend on more than its arguments.
    """
    assert call.rule is not None
    assert isinstance(call.rule.action, Substitute)
    is_known = native.launches_on(call.launches_on or "cpu")
    return is_known and is_launcher(call.rule.action.function)


class _NativeLevel(Level):
    """A level some of whose calls the player makes."""

    player: native.Player
    taught: _Taught
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


untrace_dispatch(_NativeLevel)


def level_for(mode: BaseMode) -> Level:
    """Return a level of a mode: with the player, where it is built and may act."""
    player = native.player()
    if player is None or mode.forwards_overridden or not mode.policy.substitute:
        return Level(mode)
    taught: _Taught | None = mode.taught
    if taught is None:
        attach(player)
        taught = mode.taught = _Taught(player, mode)
        mode.overloads.clear()  # of overloads that were met before, the player is to know, too
    level = _NativeLevel(mode)
    level.player, level.taught = player, taught
    return level
