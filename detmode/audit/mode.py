"""The mode that records what would happen on CUDA without doing it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from detmode.audit.blind_spots import find_unseen
from detmode.audit.report import AuditReport, Cost
from detmode.audit.traffic import Floor
from detmode.environment.settings import FLAG, deterministic_flag
from detmode.mode.deterministic_mode import DeterministicMode
from detmode.mode.plan import Plan
from detmode.reports.report import ReportRow
from detmode.rules import families
from detmode.sites.lines import surroundings
from detmode.sites.module_path import ModulePaths
from detmode.table.call import Call
from detmode.table.names import Overrides
from detmode.table.rule import Native, Substitute
from detmode.table.rule_table import FamilyRule, RuleTable, resolve

_get_sequence_nr = torch._C._autograd._get_sequence_nr
_NODES = 1 << 18


@dataclass
class _Tally:
    """The counts of an audit so far; nested entries of one mode share them."""

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
    # By the number of an autograd node, the module path of its forward call.
    made_in: dict[int, str] = field(default_factory=dict)

    def module(self) -> str:
        """Return the path of the module that makes the call; in backward, of its forward call."""
        node = torch._C._current_autograd_node()
        path = self.made_in.get(node._sequence_nr(), "") if node is not None else self._path()
        if len(self.made_in) >= _NODES:
            for oldest in list(self.made_in)[: _NODES // 4]:
                del self.made_in[oldest]
        # The first call that finds a node's number used is the one that made the node.
        self.made_in.setdefault(_get_sequence_nr() - 1, path)
        return path

    def _path(self) -> str:
        modules = surroundings()[1]
        for cls in set(map(type, modules)) - self.classes:
            self.classes.add(cls)
            self.called.update(f"{each.__module__}.{each.__qualname__}" for each in cls.__mro__)
        return self.paths.of(modules, recomputed=False) if modules else ""


class Audit(DeterministicMode):
    """Records what the mode would do on CUDA and the bytes that the calls move.

    CPU and meta tensors count as CUDA tensors. Nothing is raised or warned about, no CUDA kernel
    runs, and the results are those of the CPU.

    Args:
        warn_only: like the other arguments, as in :class:`~detmode.DeterministicMode`; the audit
            reports what a mode with these arguments would do.
        substitute: as above.
        rules: as above.
        overrides: as above.
        fill_uninitialized_memory: as above.
        log: as above.
    """

    def __init__(
        self,
        warn_only: bool = False,
        *,
        substitute: bool = True,
        rules: RuleTable | None = None,
        overrides: Overrides | None = None,
        fill_uninitialized_memory: bool | None = None,
        log: logging.Logger | int | str | None = None,
    ) -> None:
        super().__init__(
            warn_only,
            substitute=substitute,
            rules=rules,
            overrides=overrides,
            fill_uninitialized_memory=fill_uninitialized_memory,
            simulate="cuda",
            log=log,
        )

    def _begin(self) -> None:
        super()._begin()
        self._floors: dict[torch._ops.OpOverload, Floor] = {}
        self._tally = _Tally()

    def report(self) -> AuditReport:
        """Return the report of the calls so far."""
        met = super().report()
        tally = self._tally
        stand_ins = {name: getattr(family, "STANDS_FOR", {}) for name, family in families().items()}
        return AuditReport(
            met.records,
            (replace(tally.rows[_key(record)]) for record in met.records),
            {path: replace(cost) for path, cost in tally.modules.items()},
            replace(tally.total),
            tally.fill_bytes,
            find_unseen(self._table, stand_ins, tally.called, self._would_on_cuda),
            met.first_calls,
        )

    def _plan(self, func: Any) -> Plan | None:
        """Plan operators that no rule lists too, because their bytes count."""
        plan = super()._plan(func)
        if plan is None and isinstance(func, torch._ops.OpOverload):
            plan = self._plans[func] = Plan(func, (), None, False)
        return plan

    def _intercept(
        self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], *, traced: bool
    ) -> Any:
        tally = self._tally
        tally.called.add(plan.func._schema.name)
        if plan.composite and plan.override is None:
            # The operators that it calls are counted instead.
            return super()._intercept(plan, args, kwargs, traced=traced)
        module, tally.acted = tally.module(), None
        result = super()._intercept(plan, args, kwargs, traced=traced)
        cost = tally.acted or Cost.of(self._floor(plan.func).bytes(args, kwargs, result), 0)
        tally.total.add(cost)
        tally.modules.setdefault(module, Cost()).add(cost)
        return result

    def _act(
        self,
        plan: Plan,
        row: FamilyRule | None,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        traced: bool,
    ) -> Any:
        asked = "allow" if self._memory.allows(plan.names) else plan.override
        would = self._would(row, asked, flag_is_on=FLAG.chosen()[0])
        if would is None:
            return plan.func(*args, **kwargs)
        record, *_ = self._recorder.count(plan, row, would, call, self._memory)
        cost_of_row = self._tally.rows.setdefault(_key(record), Cost())
        held = _held(call.tensors[0]) if plan.variant == "inplace" else 0
        with deterministic_flag(False):
            result = plan.func(*args, **kwargs)
        floor = self._floor(plan.func)
        if floor.allocates and would in ("native", "substitute"):
            filled = _held(result) - held
            self._tally.fill_bytes += filled
            cost = Cost.of(0, filled)
        else:
            moved = floor.bytes(args, kwargs, result)
            cost = Cost.of(moved, _extra(row, would, moved))
        cost_of_row.add(cost)
        self._tally.acted = cost
        return result

    def _floor(self, func: torch._ops.OpOverload) -> Floor:
        floor = self._floors.get(func)
        if floor is None:
            floor = self._floors[func] = Floor(func)
        return floor

    def _would(self, row: FamilyRule | None, asked: str | None, *, flag_is_on: bool) -> str | None:
        """Return the action of the mode for a call; ``None`` if it would only call the operator."""
        if asked in ("allow", "native", "warn", "error"):
            return asked
        if row is None:
            # An override asks for a substitute, and no row says how.
            return None
        action = row.rule.action
        if isinstance(action, Substitute):
            if self._substitute or asked == "substitute":
                return "substitute"
            action = row.rule.without_substitute
        if isinstance(action, Native) and flag_is_on:
            return "native"
        return "warn" if self._warn_only or row.rule.alert is None or not flag_is_on else "error"

    def _would_on_cuda(self, row: FamilyRule) -> str:
        """Return the action of the mode for a call that matches the row."""
        func = resolve(row.rule.op)
        plan = (self._plans.get(func) or self._plan(func)) if func is not None else None
        return self._would(row, plan.override if plan else None, flag_is_on=True) or "allow"


def _key(record: ReportRow) -> tuple[str, str, str]:
    """Return the fields that identify a row of a report."""
    return record.overload, record.action, record.site


def _held(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's storage; 0 for sparse tensors, which are not filled."""
    return tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else 0


def _extra(row: FamilyRule | None, would: str, moved: int) -> int | None:
    """Return the bytes that determinism adds to a call that moves ``moved`` bytes."""
    if would == "native":
        return None
    action = row.rule.action if row else None
    if would != "substitute" or not isinstance(action, Substitute):
        return 0
    return None if action.traffic is None else round((action.traffic - 1) * moved)
