"""The mode that records what would happen on CUDA without doing it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from detmode.bits.effects import effects_of
from detmode.mode.audit.audit_report import AuditReport, Cost
from detmode.mode.audit.blind_spots import find_unseen
from detmode.mode.audit.traffic import bytes_moved
from detmode.mode.base_mode import facts_of
from detmode.mode.decide import Decision, decide
from detmode.mode.deterministic_mode import DeterministicMode
from detmode.mode.handled import Handled
from detmode.mode.levels import Level
from detmode.mode.overload_info import OverloadInfo
from detmode.process.torch_settings import deterministic_flag
from detmode.rules import families
from detmode.sites.forward_memory import ForwardMemory, forward_memory
from detmode.sites.lines import modules_around
from detmode.sites.module_path import ModulePaths
from detmode.table.outcome import ActionName
from detmode.table.rule import Substitute
from detmode.table.rule_table import Row, resolve


@dataclass
class _Tally:
    """The counts of an audit in one thread so far; nested entries of one mode share them."""

    total: Cost = field(default_factory=Cost)
    rows: dict[tuple[str, str, str], Cost] = field(default_factory=dict)
    modules: dict[str, Cost] = field(default_factory=dict)
    fill_bytes: int = 0
    # The cost of the last call, if a rule or an override acted on it.
    acted: Cost | None = None
    # The operators, and the classes of the modules, that were called.
    called: set[str] = field(default_factory=set)
    classes: set[type] = field(default_factory=set)
    paths: ModulePaths = field(default_factory=ModulePaths)
    memory: ForwardMemory = field(default_factory=forward_memory)

    def __post_init__(self) -> None:
        self.memory.begin_observing()

    def add(self, tally: _Tally) -> None:
        """Add what another thread has counted."""
        self.total.add(tally.total)
        self.fill_bytes += tally.fill_bytes
        self.called |= tally.called
        for key, cost in list(tally.rows.items()):
            self.rows.setdefault(key, Cost()).add(cost)
        for path, cost in list(tally.modules.items()):
            self.modules.setdefault(path, Cost()).add(cost)

    def module(self) -> str:
        """Return the path of the module that makes the call; in backward, of its forward call."""
        for cls in set(map(type, modules_around(sys._getframe()))) - self.classes:
            self.classes.add(cls)
            self.called.update(f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__)
        return self.memory.place_of_call(self.paths).module or ""


class _AuditLevel(Level):
    """One entering of an audit, which counts what each call moves."""

    mode: Audit

    def __init__(self, mode: Audit) -> None:
        super().__init__(mode)
        self.tally = mode.tally

    def elsewhere(self, memory: ForwardMemory) -> Level:
        """Return the level as it acts in another thread, where it counts in another tally."""
        level = super().elsewhere(memory)
        assert isinstance(level, _AuditLevel)
        level.tally = _Tally()
        self.mode.tallies.append(level.tally)
        return level

    def intercept(
        self,
        overload: OverloadInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        traced: bool,
        site: str | None = None,
    ) -> Any:
        """Intercept a call, and count the bytes that it moves."""
        tally = self.tally
        tally.called.add(overload.func._schema.name)
        if (overload.composite or overload.hides_calls) and overload.override is None:
            moved = tally.total.bytes
            result = super().intercept(overload, args, kwargs, traced, site)
            # The operators that it calls are counted instead, if they move anything.
            if overload.composite or tally.total.bytes > moved:
                return result
            module, tally.acted = tally.module(), None
            return self._counted(overload, args, kwargs, result, module)
        module, tally.acted = tally.module(), None
        # As in a trace nothing is launched, so that no substitute is unavailable.
        result = super().intercept(overload, args, kwargs, True, site)
        return self._counted(overload, args, kwargs, result, module)

    def _counted(
        self,
        overload: OverloadInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        module: str,
    ) -> Any:
        tally = self.tally
        cost = tally.acted or Cost.of(bytes_moved(overload.func, args, kwargs, result), 0)
        tally.total.add(cost)
        tally.modules.setdefault(module, Cost()).add(cost)
        return result

    def perform(self, call: Handled, decision: Decision) -> Any:
        """Make the call as PyTorch makes it without its flag, and count what it costs."""
        assert call.site is not None
        overload, action = call.overload, decision.action
        cost_of_row = self.tally.rows.setdefault(
            (overload.name, action, call.site.site.text), Cost()
        )
        held = _held(call.tensors[0]) if overload.variant == "inplace" else 0
        with deterministic_flag(False):
            result = call.run()
        if effects_of(call.func).allocates and action in ("native", "substitute"):
            filled = _held(result) - held
            self.tally.fill_bytes += filled
            cost = Cost.of(0, filled)
        else:
            moved = bytes_moved(call.func, call.args, call.kwargs, result)
            cost = Cost.of(moved, _extra(call.row, action, moved))
        cost_of_row.add(cost)
        self.tally.acted = cost
        return result


class Audit(DeterministicMode):
    """Records what the mode would do on CUDA and the bytes that the calls move.

    CPU and meta tensors count as CUDA tensors. Nothing is raised or warned about, no CUDA kernel
    runs, and the results are those of the CPU. It acts in the threads that its thread starts, too.

    Args:
        warn_only: as in :class:`~detmode.DeterministicMode`; the audit reports what a mode with
            these arguments would do.
        options: the other arguments of a mode, except ``intercept``, ``simulate`` and
            ``schedule_seed``.
    """

    _level_class = _AuditLevel
    announced_actions = ()
    acts_in_threads = True

    def __init__(self, warn_only: bool = False, **options: Any) -> None:
        super().__init__(warn_only, intercept="all", simulate="cuda", compile=False, **options)

    def _begin(self) -> None:
        super()._begin()
        # Of the threads that enter the audit; those that they start have others.
        self.tally = _Tally()
        self.tallies = [self.tally]

    def report(self) -> AuditReport:
        """Return the report of the calls so far."""
        met = super().report()
        tally = _Tally()
        for of_thread in list(self.tallies):
            tally.add(of_thread)
        stand_ins = {name: getattr(family, "STANDS_FOR", {}) for name, family in families().items()}
        return AuditReport(
            met.records,
            (replace(tally.rows[record.line]) for record in met.records),
            {path: replace(cost) for path, cost in tally.modules.items()},
            replace(tally.total),
            tally.fill_bytes,
            find_unseen(self.table, stand_ins, tally.called, self._would_on_cuda),
            met.course,
            met.head,
        )

    def _look_up(self, func: Any) -> OverloadInfo | None:
        """Look up operators that no rule lists too, because their bytes count."""
        overload = super()._look_up(func)
        if overload is None and isinstance(func, torch._ops.OpOverload):
            return OverloadInfo(func)
        return overload

    def _would_on_cuda(self, row: Row) -> ActionName:
        func = resolve(row.rule.op)
        override = facts_of(func, self.table, self.overrides).override if func else None
        action = decide(row.rule, self.policy, override=override).action
        assert action != "pass"  # no row of what an audit cannot see allows its calls
        return action


def _held(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's storage; 0 for sparse tensors, which are not filled."""
    return tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else 0


def _extra(row: Row | None, would: str, moved: int) -> int | None:
    """Return the bytes that determinism adds to a call that moves ``moved`` bytes."""
    if would == "native":
        return None
    action = row.rule.action if row else None
    if would != "substitute" or not isinstance(action, Substitute):
        return 0
    return None if action.traffic is None else round((action.traffic - 1) * moved)
