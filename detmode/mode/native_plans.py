"""The knowledge of the player in C++ for one mode: plans of calls, and places where they count."""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from detmode.cuda import device, native
from detmode.cuda.native import host_steps
from detmode.cuda.plan import AtenCall, Check, Launch, Plan
from detmode.mode.decide import Decision
from detmode.mode.handled import Handled, Located
from detmode.mode.native_frames import learn_frames
from detmode.mode.native_log import ENTRIES, LogEntry, entries, number_for, number_of_note, numbers
from detmode.mode.native_ops import funcs, has_all_in_key, is_played, op_for_modes
from detmode.mode.plans import is_captured, recording_of, refuse
from detmode.mode.row_counter import ModuleCalls
from detmode.table.call_site import Note

if TYPE_CHECKING:
    from detmode.mode.base_mode import BaseMode
    from detmode.mode.levels import Level

# pytest and IPython leave out frames of this module: the line of the program is what matters.
__tracebackhide__ = True

_NATIVE, _NEVER, _PASSED, _STRICT = [-1], [-2], [-3], [-4]
"""The words of a plan for ATen's own kernel, of one that there is not, for uncounted calls, and for
a kernel of ATen's that needs PyTorch's strict flag."""
_BY_VALUES = -5
"""The first word of those that say at which values to look, before there can be a plan."""
_PLANS = 1 << 13
"""The most plans that the player is taught; then it forgets everything, and learns again."""


class Taught:
    """The knowledge of the player for one mode.

    Args:
        player: the library.
        mode: the mode, which it does not keep alive.
    """

    def __init__(self, player: native.Player, mode: BaseMode) -> None:
        self._player = player
        self._rules, self._counter, self._paths = mode.table, mode.counter, mode.counter.paths
        self._paths.on_rename = self.forget
        self._is_active = False
        self._shares: dict[int, int] = {}
        self._counts_in = weakref.ref(mode.counter)
        self._receivers: list[Level] = []
        self._begin()

    def _begin(self) -> None:
        self._number = self._turn = next(numbers)
        self._owner = self._player.dm_table(self._number)
        self._table: int = self._player.dm_table_of(self._owner)
        self._rows: dict[tuple[Any, ...], int] = {}
        self._known: dict[tuple[Any, ...], int] = {}
        for number, share in self._shares.items():
            self._player.dm_share(self._table, number, share)
        for level in self._receivers:
            self._player.dm_level(id(level), self._table)
        self._left = {"plans": _PLANS, "steps": host_steps.MOST, "entries": ENTRIES}

    def activate(self, is_active: bool, *, is_here: bool = False) -> None:
        """Have the player act for the mode, or leave all calls to Python.

        Each time Python makes the first call of a thread, whose number it notes anew.

        Args:
            is_active: whether it acts.
            is_here: whether the current thread's block is the one for which it does, so that its
                calls are the mode's own.
        """
        self._is_active = is_active
        if is_active:
            self._turn = next(numbers)
            self._player.dm_turn(self._table, self._turn, is_here)
        self._player.dm_activate(self._table if is_active else None)

    def follow(self, level: Level, is_receiver: bool) -> None:
        """Share in the calls that PyTorch passes to a level, or leave them to it."""
        if is_receiver:
            self._receivers.append(level)
        elif level in self._receivers:
            self._receivers.remove(level)
        self._player.dm_level(id(level), self._table if is_receiver else None)

    def share(self, func: torch._ops.OpOverload, share: int) -> None:
        """Share in the calls of an overload."""
        number = op_for_modes(self._player, func) if share else -1
        if number >= 0:
            self._shares[number] = share
            self._player.dm_share(self._table, number, share)

    def forget(self) -> None:
        """Have the player forget everything, because there is too much or it no longer holds."""
        self._begin()
        if self._is_active:
            self.activate(True)

    def is_wanted(self, func: torch._ops.OpOverload) -> int:
        """Return what the call in this thread, of an overload, may teach, as ``dm_pending``."""
        wanted = self._wanted_of(func)
        # The kernel may be there for a block with another table.
        return wanted if wanted and has_all_in_key(self._rules, func) else 0

    def _wanted_of(self, func: torch._ops.OpOverload) -> int:
        pending: int = self._player.dm_pending(self._number)
        return pending & 3 if pending and funcs.get(pending >> 2) is func else 0

    def perform(
        self, call: Handled, decision: Decision, run: Callable[[], Any], wanted: int
    ) -> Any:
        """Make a call by its launcher, or by ATen, and teach the player what is wanted."""
        row = self._rows.setdefault((call.row, decision), len(self._rows))
        if decision.action == "native":
            result = run()
            if wanted == 2:
                self._add_words(_STRICT if call.reads_warn_only else _NATIVE, row)
        elif wanted >= 2 and not native.launches_on(call.launches_on or "cpu"):
            result = run()
            self._add_words(_NEVER, row)
        elif wanted >= 2 and not is_captured(call.tensors):
            with recording_of(call) as recorder:
                result = run()
            plan = recorder.plan(result, may_look=True)
            if plan is not None and plan.looks and wanted == 2:
                self._add_words([_BY_VALUES, *itertools.chain(*plan.looks)], row)
            else:
                self._add_plan(call, plan, recorder.problem, row)
        else:
            result = run()
        self._add_entry(call, self._counter.calls_of(call, decision), row)
        self._forget_if_full()
        return result

    def learn_passed(self, call: Handled) -> None:
        """Teach the player a call that is made by ATen, uncounted, and its place if it has one."""
        wanted = self.is_wanted(call.func)
        if not wanted:
            return
        row = self._rows.setdefault((call.row, None), len(self._rows))
        if wanted == 2:
            self._add_words(_PASSED, row)
        if call.site is not None:
            self._add_entry(call, None, row)
        self._forget_if_full()

    def learn_place(self, call: Located) -> None:
        """Teach the player the place of a call that is noted for its backward."""
        if call.site is not None and self._wanted_of(call.func):
            self._add_entry(call, None, 0)
            self._forget_if_full()

    def _forget_if_full(self) -> None:
        if min(self._left.values()) <= 0:
            self.forget()

    def _add_plan(self, call: Handled, plan: Plan | None, problem: str | None, row: int) -> None:
        words = None
        if not is_played(call.func):
            problem = "it writes to what it is given"
        elif plan is not None and plan.device == call.launches_on:
            words = plan.words(functools.partial(self._number_of, call, plan))
        if words is None:
            refuse(
                call,
                problem or "it calls an operator that allocates, or that takes more than numbers",
            )
        self._add_words(words or _NEVER, row)

    def _add_words(self, words: list[int], row: int) -> None:
        self._left["plans"] -= 1
        packed = (ctypes.c_int64 * len(words))(*words)
        self._player.dm_add_plan(self._table, row, packed, len(words))

    def _number_of(self, call: Handled, plan: Plan, step: Launch | Check | AtenCall) -> int:
        """Return a number for what the player launches or calls, or leaves to Python on the CPU."""
        if isinstance(step, AtenCall):
            return op_for_modes(self._player, step.func)
        if call.launches_on == "cuda":
            assert isinstance(step, Launch)
            index = call.tensors[0].get_device()
            return device.loaded(step.source, step.entry, index).function
        self._left["steps"] -= 1
        return host_steps.number_for(step, plan)

    def _add_entry(self, call: Handled | Located, calls: ModuleCalls | None, row: int) -> None:
        """Teach the row and the place of a call, if they hold for others like it."""
        assert call.site is not None
        self._player.dm_join(self._turn, calls is not None)
        is_logged = calls is not None and self._counter.logs(calls)
        if is_logged or not self._is_noted_as(call):
            return
        learn_frames(self._player, sys._getframe(), self._paths.known)
        note = Note(call.site, call.names, ())
        number = self._known.get((calls, note)) if calls is not None else number_of_note(note)
        if number is None:
            number = number_for(LogEntry(self._counts_in, calls, note))
            self._known[calls, note] = number
        self._left["entries"] -= self._player.dm_add_entry(self._table, row, number)

    def _is_noted_as(self, call: Handled | Located) -> bool:
        """Return whether the player finds the forward of a call where Python has found it."""
        noted = entries.get(self._player.dm_noted())
        return noted is None or bool(call.notes and call.notes[0].site == noted.note.site)
