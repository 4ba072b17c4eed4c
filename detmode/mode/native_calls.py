"""Calls that the player in C++ makes for ``intercept="listed"``, and what Python teaches it.

Its kernels stand above those of :mod:`detmode.mode.listed`. A call that the player does not know
comes to Python as ever. Where that runs a substitute, or PyTorch's deterministic path, it may leave
the player what the next such call needs: the plan of the launcher, which is recorded when the
arguments are met again, or that ATen makes the call; and the row in which calls at such a place are
counted. What the player has made it writes to a log, from
which Python counts before it counts a call itself, and before a report.

The player acts while one block is open, which lists, and no allow region, and no override names a
forward: what the decision on a call then depends on is in its key. All else is Python's.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import itertools
import operator
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from detmode.cuda import device, native
from detmode.cuda.native import host_steps
from detmode.cuda.plan import Check, Launch, Plan
from detmode.cuda.recorder import recording
from detmode.mode.decide import Decision
from detmode.mode.handled import Handled, Located
from detmode.mode.levels import Level
from detmode.mode.native_frames import learn_frames
from detmode.mode.overload_info import OverloadInfo
from detmode.mode.plans import is_captured, refuse, written_by
from detmode.mode.row_counter import ModuleCalls, RowCounter
from detmode.process.bounded import Bounded
from detmode.process.dispatch import caller_of, untrace_dispatch
from detmode.process.setting import all_settings, outside_python
from detmode.process.undo import Lock
from detmode.sites.native_memory import process
from detmode.table.call_site import Note
from detmode.table.rule import Native
from detmode.table.rule_table import RuleTable
from detmode.table.variants import variant_of

if TYPE_CHECKING:
    from detmode.mode.base_mode import BaseMode
    from detmode.mode.listed_operators import Place

# pytest and IPython leave out frames of this module: the line of the program is what matters.
__tracebackhide__ = True

_NATIVE, _NEVER, _PASSED, _STRICT = [-1], [-2], [-3], [-4]
"""The words of a plan for ATen's own kernel, of one that there is not, for uncounted calls, and for
a kernel of ATen's that needs PyTorch's strict flag."""
_BY_VALUES = -5
"""The first word of those that say at which values to look, before there can be a plan."""
_PLANS, _ENTRIES = 1 << 13, 1 << 15
"""The most of what the player is taught; then it forgets everything, and learns again."""
_KEYS, _ABOVE = ("CPU", "CUDA"), ("AutogradCPU", "AutogradCUDA")
"""The keys at which the player makes calls, and those at which it notes them."""
_LOG = 1 << 13


class _Entry(NamedTuple):
    """The meaning of one of the log's numbers.

    Args:
        counter: counts the calls.
        calls: those of a row and module; ``None`` of a note without calls.
        note: for the backward of the calls.
    """

    counter: RowCounter | None
    calls: ModuleCalls | None
    note: Note


_numbers = itertools.count(1)
"""Of entries and tables: no number is given twice."""
_entries: Bounded[int, _Entry] = Bounded(8 * _ENTRIES)
_ops: dict[str, int] = {}
"""The numbers of operators at keys, by the labels of their places; -1 if the player takes none."""
_lock = Lock()
_taken = (ctypes.c_uint32 * _LOG)()


class NativeLevel(Level):
    """A level of a mode that lists, some of whose calls the player makes."""

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
            self.taught.share(func, _share_of(self.mode.table, func, overload))

    def set_innermost(self, is_innermost: bool) -> None:
        """Have the player share in the calls that the level receives while it is innermost."""
        super().set_innermost(is_innermost)
        if not self.intercepts_listed:
            self.taught.follow(self, is_innermost)

    def register_below(self, places: Iterable[Place]) -> None:
        """Note the kernels that stand at places, which make native calls."""
        for place in places:
            number = _op(self, place)
            if number >= 0:
                self.player.dm_prepare(number, _is_taught(self.mode.table, place.func))

    def register_above(self, places: Iterable[Place], undo: list[Callable[[], object]]) -> None:
        """Put the player's kernels above those at places."""
        for place in places:
            number = _op(self, place)
            if number >= 0:
                undo.append(functools.partial(self.player.dm_unregister, number))
                self.player.dm_register(number)

    def act_alone(self, is_alone: bool) -> None:
        """Have the player act for this block while it is the one that is open."""
        self.taught.activate(is_alone)

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


class _Taught:
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
        self._current: list[int] = []
        self._counted: list[int] = []
        self._receivers: weakref.WeakSet[NativeLevel] = weakref.WeakSet()
        self._begin()
        weakref.finalize(mode, _end, player, self._current, self._counted).atexit = False

    def _begin(self) -> None:
        self._number = next(_numbers)
        self._table: int = self._player.dm_table(self._number)
        self._current[:] = [self._table]
        self._rows: dict[tuple[Any, ...], int] = {}
        self._known: dict[tuple[Any, ...], int] = {}
        for number, share in self._shares.items():
            self._player.dm_share(self._table, number, share)
        for level in self._receivers:
            self._player.dm_level(id(level), self._table)
        self._left = {"plans": _PLANS, "steps": host_steps.MOST, "entries": _ENTRIES}

    def activate(self, is_active: bool) -> None:
        """Have the player act for the mode, or leave all calls to Python."""
        self._is_active = is_active
        self._player.dm_activate(self._table if is_active else None)

    def follow(self, level: NativeLevel, is_receiver: bool) -> None:
        """Share in the calls that PyTorch passes to a level, or leave them to it."""
        (self._receivers.add if is_receiver else self._receivers.discard)(level)
        self._player.dm_level(id(level), self._table if is_receiver else None)

    def share(self, func: torch._ops.OpOverload, share: int) -> None:
        """Share in the calls of an overload."""
        schema = func._schema
        number = self._player.dm_mode_op(schema.name.encode(), schema.overload_name.encode())
        if number >= 0 and share:
            _funcs[number] = func
            self._shares[number] = share
            self._player.dm_share(self._table, number, share)

    def forget(self) -> None:
        """Have the player forget everything, because there is too much or it no longer holds."""
        self._player.dm_retire(self._table)
        self._begin()
        if self._is_active:
            self.activate(True)

    def is_wanted(self, func: torch._ops.OpOverload) -> int:
        """Return what the call in this thread, of an overload, may teach, as ``dm_pending``."""
        wanted = self._wanted_of(func)
        # The kernel may be there for a block with another table.
        return wanted if wanted and _has_all_in_key(self._rules, func) else 0

    def _wanted_of(self, func: torch._ops.OpOverload) -> int:
        pending: int = self._player.dm_pending(self._number)
        return pending & 3 if pending and _funcs.get(pending >> 2) is func else 0

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
            with recording(call.tensors, written_by(call)) as recorder:
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
        if not _is_played(call.func):
            problem = "it writes to what it is given"
        elif plan is not None and plan.device == call.launches_on:
            words = plan.words(functools.partial(self._number_of, call, plan))
        if words is None:
            refuse(call, problem or "it calls an operator that allocates")
        self._add_words(words or _NEVER, row)

    def _add_words(self, words: list[int], row: int) -> None:
        self._left["plans"] -= 1
        packed = (ctypes.c_int64 * len(words))(*words)
        self._player.dm_add_plan(self._table, row, packed, len(words))

    def _number_of(self, call: Handled, plan: Plan, step: Launch | Check) -> int:
        """Return a number for what the player launches, or leaves to Python on the CPU."""
        if call.launches_on == "cuda":
            assert isinstance(step, Launch)
            index = call.tensors[0].get_device()
            return device.loaded(step.source, step.entry, index).function
        self._left["steps"] -= 1
        return host_steps.number_for(step, plan)

    def _add_entry(self, call: Handled | Located, calls: ModuleCalls | None, row: int) -> None:
        """Teach the row and the place of a call, if they hold for others like it."""
        assert call.site is not None
        if calls is not None:
            self._player.dm_join(self._number)
        is_logged = calls is not None and self._counter.logs(calls)
        if is_logged or not self._is_noted_as(call):
            return
        learn_frames(self._player, sys._getframe(), self._paths.known)
        note = Note(call.site, call.names, ())
        number = self._known.get((calls, note)) if calls is not None else _number_of(note)
        if number is None:
            number = _number_for(_Entry(self._counter, calls, note))
            self._known[calls, note] = number
            self._counted.append(number)
        self._left["entries"] -= self._player.dm_add_entry(self._table, row, number)

    def _is_noted_as(self, call: Handled | Located) -> bool:
        """Return whether the player finds the forward of a call where Python has found it."""
        noted = _entries.get(self._player.dm_noted())
        return noted is None or bool(call.notes and call.notes[0].site == noted.note.site)


def _end(player: native.Player, tables: list[int], counted: list[int]) -> None:
    """Free what the player knows of a mode that is gone."""
    for table in tables:
        player.dm_retire(table)
    for number in counted:
        # The note stays for a backward that is still to come.
        if (entry := _entries.get(number)) is not None:
            _entries[number] = _Entry(None, None, entry.note)


def _number_for(entry: _Entry) -> int:
    number = next(_numbers)
    _entries.keep(number, entry)
    return number


_noted: Bounded[Note, int] = Bounded(_ENTRIES)
"""The numbers of notes without calls that are counted."""


def _number_of(note: Note) -> int:
    number = _noted.get(note)
    return number or _noted.keep(note, _number_for(_Entry(None, None, note)))


# The log


def count_calls() -> None:
    """Count the calls that the player has made since."""
    if process.native_memory is not None and process.native_memory.has_calls.value:
        process.native_memory.count_calls()


def _count(player: native.Player) -> None:
    entries = [_entries[number] for number in _taken[: player.dm_take(_taken)]]
    for counter, group in itertools.groupby(entries, _counter_of):
        if counter is not None:
            counter.count_in_order([entry.calls for entry in group if entry.calls is not None])


_counter_of = operator.attrgetter("counter")


# Blocks


class _Memory:
    """The player, as a thread's memory of forward calls knows it."""

    def __init__(self, player: native.Player) -> None:
        self.player = player
        self.has_calls = player.dm_n_logged().contents

    def note(self, number: int, note: Note) -> bool:
        """Take over the note of a call that was made in Python; false if another made the node."""
        return bool(self.player.dm_note(number, _number_of(note)))

    def noted(self) -> list[Note]:
        """Return the note of the forward call whose backward runs here, if there is one."""
        entry = _entries.get(self.player.dm_noted())
        return [] if entry is None else [entry.note]

    def follow_regions(self) -> None:
        """Let Python make all calls while an allow region is open: it looks at the regions."""
        _lock.run(self._follow_regions)

    def _follow_regions(self) -> None:
        self.player.dm_regions(len(process.regions))

    def count_calls(self) -> None:
        """Count the calls that the player has made since."""
        _lock.run(_count, self.player)


def level_for(mode: BaseMode) -> Level:
    """Return a level of a mode that lists: with the player, where it is built and may act."""
    player = native.player()
    if player is None or mode.forwards_overridden or not mode.policy.substitute:
        return Level(mode)
    if process.native_memory is None:
        _attach(player)
    taught: _Taught | None = mode.taught
    if taught is None:
        taught = mode.taught = _Taught(player, mode)
        mode.overloads.clear()  # of overloads that were met before, the player is to know, too
    level = NativeLevel(mode)
    level.player, level.taught = player, taught
    return level


def _attach(player: native.Player) -> None:
    """Connect the player with this process, once."""
    process.native_memory = _Memory(player)
    if process.had_regions:
        player.dm_regions(1)  # so that it does not take their forwards for what is not allowed
    process.native_memory.follow_regions()
    player.dm_host_step(host_steps.make)
    player.dm_register_for_modes()
    numbers = [ctypes.pointer(setting.holds) for setting in all_settings]
    player.dm_holds((ctypes.POINTER(ctypes.c_int) * len(numbers))(*numbers), len(numbers))
    outside_python.here = player.dm_native_here
    outside_python.elsewhere = player.dm_native_elsewhere
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=count_calls, after_in_child=player.dm_after_fork)


_funcs: dict[int, torch._ops.OpOverload] = {}
"""The overloads of operators by their numbers."""


def _op(level: NativeLevel, place: Place) -> int:
    """Return the number of an operator at a key; -1 if the player stands not there."""
    if place.key not in (_KEYS if place.decides else _ABOVE):
        return -1
    if place.label not in _ops:
        schema = place.func._schema
        names = schema.name.encode(), schema.overload_name.encode(), place.key.encode()
        number = _ops[place.label] = level.player.dm_op(*names)
        if number >= 0:
            _funcs[number] = place.func
    return _ops[place.label]


def _is_taught(table: RuleTable, func: torch._ops.OpOverload) -> bool:
    """Return whether the player makes calls of an overload: their key has all that decides."""
    rules = [row.rule for row in table.get(func)]
    return _has_all_in_key(table, func) and any(
        isinstance(rule.action, Native) or rule.launches for rule in rules
    )


def _has_all_in_key(table: RuleTable, func: torch._ops.OpOverload) -> bool:
    conditions = [row.rule.when for row in table.get(func)]
    return not any(when.environment or when.reads_values for when in conditions)


def _share_of(table: RuleTable, func: torch._ops.OpOverload, overload: OverloadInfo | None) -> int:
    """Return what is left to the player of the calls of an overload that a mode receives."""
    if overload is None:
        return 1
    is_atens = overload.run is caller_of(func)
    if overload.override is not None or overload.composite or not is_atens:
        return 0
    if overload.passes:
        return 1
    return (2 if overload.dense_passes else 3) if _has_all_in_key(table, func) else 0


def _is_played(func: torch._ops.OpOverload) -> bool:
    """Return whether substitutes of an overload are: they write to ``self`` at most."""
    return variant_of(func) == "inplace" or not func._schema.is_mutable
