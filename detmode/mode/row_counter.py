"""Counting calls in rows: one row for each overload, action and site."""

from __future__ import annotations

import copy
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import floordiv
from typing import Any

import torch

from detmode.mode.decide import Decision
from detmode.mode.handled import Handled
from detmode.process.interface import Interface
from detmode.process.log import FIELDS
from detmode.process.setting import is_flag_on
from detmode.process.undo import Lock
from detmode.reports.report import Report
from detmode.reports.report_row import ReportRow
from detmode.sites.lines import outer_site
from detmode.sites.module_path import ModulePaths
from detmode.sites.native_memory import process
from detmode.sites.observers import repetition
from detmode.table.call_site import CallSite
from detmode.table.outcome import RUN_TO_RUN, Guarantee
from detmode.table.rule import Native, Rule, Substitute

_LINES = 10
"""Calls of a row that are logged."""
_NOTED = _LINES + 1
"""The last is noted to be the last."""
RECENT = 8192
"""The latest calls, which are kept one by one."""
_STRETCHES = 2048
"""The most parts of a run in which earlier calls are counted."""
_DEVICES = frozenset({"cuda", "mps"})
"""The types of devices that rules are about, besides the CPU."""


# One for all: of a lock that dies with its course the end would run Python code, in which an
# interrupt would be lost.
_lock = Lock()


@dataclass(eq=False, slots=True)
class ModuleCalls:
    """The number of the calls of one row that are made in one module, or outside of any."""

    row: ReportRow
    module: str | None
    count: int = 0


class _Course:
    """The order of a run's calls, in memory that does not grow with their number.

    The latest calls are kept one by one. Earlier ones are counted in stretches of the run, which
    become twice as long whenever there are too many. Several threads may add calls; the methods
    need the lock.

    Attributes:
        latest: of each call those that it is one of; new ones are added at the end.
    """

    def __init__(self) -> None:
        self.latest: list[ModuleCalls] = []
        # By the number of the stretch.
        self._counts: Counter[tuple[int, ModuleCalls]] = Counter()
        self._length = 1
        self._counted = 0

    def __len__(self) -> int:
        """Return the number of calls."""
        return self._counted + len(self.latest)

    def parts(self) -> list[tuple[ModuleCalls, int]]:
        """Return the parts of the run in order: each time the number of calls of one row."""
        counted = [(calls, count) for (_, calls), count in self._counts.items()]
        return counted + [(calls, 1) for calls in list(self.latest)]

    def shorten(self) -> None:
        """Count the latest calls, which are as many as ``RECENT``."""
        latest = self.latest[:RECENT]
        if len(latest) < RECENT:
            return  # another thread has counted them
        while (self._counted + RECENT) // self._length >= _STRETCHES:
            halved: Counter[tuple[int, ModuleCalls]] = Counter()
            for (stretch, calls), count in self._counts.items():
                halved[stretch // 2, calls] += count
            self._counts, self._length = halved, self._length * 2
        places = range(self._counted, self._counted + RECENT)
        self._counts.update(zip(map(floordiv, places, itertools.repeat(self._length)), latest))
        self._counted += RECENT
        # Other threads may have added calls behind them.
        del self.latest[:RECENT]


class RowCounter:
    """The rows of one mode, in which several threads may count at the same time.

    Args:
        logger: gets a DEBUG line for each call, up to ten for each row.
        interface: through which the mode was started; remedies are in its words.

    Attributes:
        paths: those of the modules in which calls are made.
        devices: the types of devices that rules are about, and on which calls were met.
        other_threads: numbers of the threads, besides the mode's own, whose calls were counted.
    """

    _thread: int | None = None

    def __init__(self, logger: logging.Logger, interface: Interface) -> None:
        self._logger = logger
        self.interface = interface
        self.devices: set[str] = set()
        self.other_threads: set[int] = set()
        self._threads = itertools.count()
        self.paths = ModulePaths()
        self._rows: dict[tuple[str, str, str], ReportRow] = {}
        # By the row's line, and the module.
        self._calls: dict[tuple[str, str, str, str | None], ModuleCalls] = {}
        self._course = _Course()

    def of_another_thread(self) -> RowCounter:
        """Return a counter of the same rows for a thread that works beside the mode's own."""
        counter = copy.copy(self)
        counter._thread = next(self._threads)
        return counter

    def report(self, head: Mapping[str, Any]) -> Report:
        """Return a copy of the rows so far, in the order of their first calls."""
        # The rows last: other threads may begin new ones meanwhile.
        course, all_calls = _lock.run(self._course.parts), list(self._calls.values())
        rows = list(self._rows.values())
        calls_of: dict[int, list[ModuleCalls]] = {id(row): [] for row in rows}
        for calls in all_calls:
            calls_of[id(calls.row)].append(calls)
        positions = {row: position for position, row in enumerate(calls_of)}
        return Report(
            (_counted(row, calls_of[id(row)]) for row in rows),
            [(positions[id(calls.row)], calls.module, count) for calls, count in course],
            head,
        )

    def modules(self) -> list[str]:
        """Return the paths of the modules that have made calls."""
        return [calls.module for calls in list(self._calls.values()) if calls.module is not None]

    def meet(self, devices: Iterable[str]) -> None:
        """Note the types of the devices of a call."""
        self.devices.update(_DEVICES.intersection(devices))

    def count(self, call: Handled, decision: Decision) -> bool:
        """Count the call in the row of its overload, action and site; return whether it is new."""
        site, module = call.site  # type: ignore[misc]  # it has been looked up
        calls = self._calls.get((call.name, decision.action, site.text, module))
        is_new = False
        if calls is None:
            calls, is_new = self._begin(call, decision)
        # That of all threads first: a value of the thread's own is not read as soon.
        if process.repetitions and repetition.actions is not None:
            if self._thread is not None:
                self.other_threads.add(self._thread)
            repetition.actions.append(decision.action)
            return is_new
        self._add(calls)
        if calls.count <= _NOTED and self._logger.isEnabledFor(logging.DEBUG):
            self._log(call, decision, calls.row)
        return is_new

    def count_known(self, name: str, action: str, place: CallSite) -> bool:
        """Count a call in a row that has begun, and whose calls are logged no more.

        Returns:
            False if there is no such row; the call is not counted then.
        """
        calls = self._calls.get((name, action, place.site.text, place.module))
        if calls is None or (calls.count < _NOTED and self._logger.isEnabledFor(logging.DEBUG)):
            return False
        self._add(calls)
        return True

    def _add(self, calls: ModuleCalls) -> None:
        if self._thread is not None:
            self.other_threads.add(self._thread)
        # Autograd's threads count at the same time. Each of these statements calls nothing between
        # reading and writing, so that Python, with its GIL, switches to no other thread there.
        calls.count += 1
        latest = self._course.latest
        latest.append(calls)
        if len(latest) >= RECENT:
            _lock.run(self._course.shorten)

    def calls_of(self, call: Handled, decision: Decision) -> ModuleCalls:
        """Return the calls with which a call was counted."""
        site, module = call.site  # type: ignore[misc]  # it has been looked up
        return self._calls[call.name, decision.action, site.text, module]

    def logs(self, calls: ModuleCalls) -> bool:
        """Return whether another one of the calls would get a line in the log."""
        return calls.count <= _NOTED and self._logger.isEnabledFor(logging.DEBUG)

    def count_in_order(self, in_order: Sequence[ModuleCalls]) -> None:
        """Count calls that were made without Python, in their order: of each those it is one of."""
        for calls in in_order:
            calls.count += 1
        self._course.latest += in_order
        while len(self._course.latest) >= RECENT:
            _lock.run(self._course.shorten)

    def _begin(self, call: Handled, decision: Decision) -> tuple[ModuleCalls, bool]:
        """Begin the calls in a module of the row of a call; also return whether the row is new."""
        assert call.site is not None
        assert decision.action != "pass"
        self.meet(tensor.device.type for tensor in call.tensors)
        action, (site, module) = decision.action, call.site
        rule = call.rule
        new = ReportRow(
            overload=call.name,
            family=call.row.family if call.row else None,
            action=action,
            guarantee=guarantee_of(rule, action),
            alert=rule.alert_for(call.overload.variant) if rule else None,
            count=0,
            site=site.text,
            module=None,
            because=rule.because if rule else None,
            remedy=remedy_for(call, decision, self.interface),
            outer_site=outer_site(site, self.paths),
        )
        # Another thread may have begun them meanwhile.
        row = self._rows.setdefault(new.line, new)
        return self._calls.setdefault((*row.line, module), ModuleCalls(row, module)), row is new

    def _log(self, call: Handled, decision: Decision, record: ReportRow) -> None:
        logged = sum(calls.count for calls in list(self._calls.values()) if calls.row is record)
        if logged > _NOTED:
            return
        if logged > _LINES:
            self._logger.debug(
                "%s %s at %s: further calls are not logged",
                *(record.overload, record.action, record.site),
            )
            return
        assert call.site is not None
        shapes = [_describe(tensor) for tensor in call.tensors]
        about = record.overload, record.action, record.family, record.guarantee, record.site
        values = len(self._course), *about, call.site.module, shapes, decision.why
        fields = dict(zip(FIELDS, values))
        self._logger.debug(
            "%(call)d %(overload)s %(action)s [%(family)s] %(shapes)s at %(site)s: %(reason)s",
            {**fields, "shapes": ", ".join(shapes)},
            extra=fields,
        )


def _counted(row: ReportRow, parts: list[ModuleCalls]) -> ReportRow:
    modules = {calls.module: calls.count for calls in parts if calls.module is not None}
    return replace(row, count=sum(calls.count for calls in parts), modules=modules)


def remedy_for(call: Handled, decision: Decision, interface: Interface) -> str | None:
    """Return advice on a call, or on the row that it starts; ``None`` if nothing is needed."""
    rule = call.rule
    overridden = decision.override
    substitute_exists = rule is not None and isinstance(rule.action, Substitute)
    if decision.action == "allow":
        if rule is None:
            return "allowed by name; no rule lists it, so that the override may be left out"
        otherwise = "runs its deterministic kernel" if substitute_exists else "warns about it"
        return f"allowed by name; without the allow region or the override detmode {otherwise}"
    if decision.action == "substitute" or (decision.action == "native" and overridden is None):
        return None
    if overridden is not None:
        return f"{interface.name_of('overrides')} gives it this action: {overridden!r}"
    if decision.unavailable is not None:
        return (
            "detmode has a deterministic kernel for it, but cannot run it here: "
            f"{interface.in_words(decision.unavailable)}"
        )
    if substitute_exists:
        return (
            "detmode has a deterministic kernel for it, and runs it without "
            f"{interface.option('substitute', False)}"
        )
    allow = interface.how_to_allow(call.func._schema.name)
    if decision.action == "warn":
        return f"To accept it without a warning, backward included: {allow}"
    # Where PyTorch gives no alert, only strict=True makes it an error.
    is_silent = rule is None or rule.alert is None or not is_flag_on()
    warns = ("strict", False) if is_silent else ("warn_only", True)
    return (
        f"To let it run as it is, backward included: {allow}; "
        f"to get warnings instead of errors: {interface.option(*warns)}"
    )


def guarantee_of(rule: Rule | None, action: str) -> Guarantee | None:
    """Return the guarantee of a call under a rule, given the action taken."""
    if rule is None or rule.guarantee is None:
        return None
    if action == "substitute":
        return rule.guarantee
    # Without the substitute only what PyTorch's own path promises is left.
    is_native = action == "native" and isinstance(rule.without_substitute, Native)
    return RUN_TO_RUN if is_native else None


def _describe(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}{list(tensor.shape)}@{tensor.device}"
