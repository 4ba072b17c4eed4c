"""``audit``: what a CUDA run would meet and what it would cost, on a machine without one."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch

from detmode.blind_spots import Unseen, find_unseen, text_of
from detmode.call import Call
from detmode.mode import DeterministicMode
from detmode.plan import Plan
from detmode.report import Record, Report
from detmode.rule import Native, Substitute
from detmode.rules import rooms
from detmode.settings import flag
from detmode.sites import called_modules, path_of
from detmode.table import Row, RuleTable, resolve
from detmode.traffic import Floor

_get_flag = torch._C._get_deterministic_algorithms
_get_sequence_nr = torch._C._autograd._get_sequence_nr
_MODULES_SHOWN = 10
_NODES = 1 << 18


@dataclass
class Cost:
    """What calls move.

    Args:
        calls: how many.
        bytes: the floor: their inputs read once and their outputs written once.
        extra_bytes: what determinism adds to that, as far as it has been counted.
        uncounted_bytes: the floor of those calls of which it has not.
    """

    calls: int = 0
    bytes: int = 0
    extra_bytes: int = 0
    uncounted_bytes: int = 0

    def add(self, other: Cost) -> None:
        """Count further calls."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


class AuditReport(Report):
    """What a CUDA run would meet, with an estimate of what determinism adds to it.

    The estimate is a count of bytes, and no measurement.

    Attributes:
        records: the rows, a tuple of :class:`~detmode.report.Record`.
        costs: the :class:`Cost` of each row, in the same order.
        modules: the :class:`Cost` of all calls by ``nn.Module`` path, ``""`` where none is known;
            calls that no rule lists are in it too.
        total: the :class:`Cost` of all calls.
        fill_bytes: what the fill of uninitialized memory writes; in ``total.extra_bytes`` too. It
            counts ``torch.empty`` and its like, and not what ATen allocates inside its kernels.
        unseen: what the audit could not see, a tuple of :class:`~detmode.blind_spots.Unseen`.
    """

    def __init__(
        self,
        records: Iterable[Record],
        costs: Iterable[Cost],
        modules: Mapping[str, Cost],
        total: Cost,
        fill_bytes: int,
        unseen: Iterable[Unseen],
    ) -> None:
        super().__init__(records)
        self.costs = tuple(costs)
        self.modules = dict(modules)
        self.total = total
        self.fill_bytes = fill_bytes
        self.unseen = tuple(unseen)

    @property
    def total_bytes(self) -> int:
        """The floor of all calls."""
        return self.total.bytes

    @property
    def extra_bytes(self) -> int:
        """What determinism adds to it, as far as it has been counted; the fill is a part of it."""
        return self.total.extra_bytes

    @property
    def raises(self) -> bool:
        """Whether a call would raise."""
        return any(record.action == "error" for record in self.records)

    def __str__(self) -> str:
        """The rows, the estimate, the modules where determinism adds most, and what is unseen."""
        parts = [super().__str__(), self._estimate(), self._where(), text_of(self.unseen)]
        return "\n\n".join(part for part in parts if part)

    def _estimate(self) -> str:
        """The totals in words."""
        total = self.total
        share = total.extra_bytes / total.bytes if total.bytes else 0.0
        text = (
            f"{total.calls} calls move {_size(total.bytes)} at least: inputs read once, outputs "
            f"written once.\nDeterminism adds at most about {share:.1%} to that: substitutes "
            f"{_size(total.extra_bytes - self.fill_bytes)}, the fill of uninitialized memory "
            f"{_size(self.fill_bytes)}.\n"
        )
        if total.uncounted_bytes:
            text += (
                f"Not counted is what it adds to calls that move {_size(total.uncounted_bytes)}: "
                "PyTorch's own deterministic paths, and substitutes without a count.\n"
            )
        return text + (
            "Bytes are counted, time is not measured; operators bound by arithmetic make the share "
            "smaller."
        )

    def _where(self) -> str:
        """A table of the modules to which determinism adds most."""
        if not any(self.modules):
            return ""
        from tabulate import tabulate  # a table is printed once, and detmode imported always

        def weight(item: tuple[str, Cost]) -> tuple[int, int]:
            return item[1].extra_bytes, item[1].bytes

        costliest = sorted(self.modules.items(), key=weight, reverse=True)
        rows = [
            (path or "(none)", cost.calls, _size(cost.bytes), _size(cost.extra_bytes))
            for path, cost in costliest[:_MODULES_SHOWN]
        ]
        columns = ("module", "calls", "move", "determinism adds")
        table = str(tabulate(rows, headers=columns, disable_numparse=True))
        more = len(costliest) - _MODULES_SHOWN
        return f"{table}\nand {more} modules more" if more > 0 else table

    def to_json(self) -> str:
        """A JSON object.

        ``rows`` has the fields of :class:`~detmode.report.Record`, ``bytes`` and ``extra_bytes``,
        which is null where it has not been counted; ``modules`` and ``unseen`` are lists of objects
        with the fields of :class:`Cost` and :class:`~detmode.blind_spots.Unseen`; beside them stand
        the totals.
        """
        rows = [
            {
                **asdict(record),
                "bytes": cost.bytes,
                "extra_bytes": None if cost.uncounted_bytes else cost.extra_bytes,
            }
            for record, cost in zip(self.records, self.costs)
        ]
        whole = {
            "rows": rows,
            "modules": [{"module": path, **asdict(cost)} for path, cost in self.modules.items()],
            "unseen": [asdict(unseen) for unseen in self.unseen],
            "calls": self.total.calls,
            "total_bytes": self.total.bytes,
            "extra_bytes": self.total.extra_bytes,
            "uncounted_bytes": self.total.uncounted_bytes,
            "fill_bytes": self.fill_bytes,
            "raises": self.raises,
        }
        return json.dumps(whole, indent=2)

    @classmethod
    def from_json(cls, text: str) -> AuditReport:
        """The report that :meth:`to_json` wrote.

        Raises:
            ValueError: the text is not such a report.
        """
        try:
            whole = json.loads(text)
            records, costs, modules = [], [], {}
            for row in whole["rows"]:
                moved, extra = row.pop("bytes"), row.pop("extra_bytes")
                records.append(Record(**row))
                costs.append(_cost(moved, extra, calls=row["count"]))
            for entry in whole["modules"]:
                path = entry.pop("module")
                modules[path] = Cost(**entry)
            totals = (
                whole[name] for name in ("calls", "total_bytes", "extra_bytes", "uncounted_bytes")
            )
            unseen = [Unseen.from_dict(entry) for entry in whole["unseen"]]
            return cls(records, costs, modules, Cost(*totals), whole["fill_bytes"], unseen)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError("not the report of an audit, as AuditReport.to_json writes") from error


def _cost(moved: int, extra: int | None, *, calls: int = 1) -> Cost:
    """The cost of calls; ``extra`` is None where it has not been counted."""
    return Cost(calls, moved, extra or 0, moved if extra is None else 0)


@dataclass
class _Tally:
    """What an audit has counted so far; the levels of a mode that is entered twice share it."""

    total: Cost = field(default_factory=Cost)
    rows: dict[tuple[str, str, str], Cost] = field(default_factory=dict)
    modules: dict[str, Cost] = field(default_factory=dict)
    fill_bytes: int = 0
    # What the last call cost, where a rule or an override acted on it.
    acted: Cost | None = None
    # Operators and the classes of modules that were called.
    called: set[str] = field(default_factory=set)
    # By the modules on the stack their path, by an autograd node's number that of its forward call.
    paths: dict[tuple[torch.nn.Module, ...], str] = field(default_factory=dict)
    made_in: dict[int, str] = field(default_factory=dict)

    def module(self) -> str:
        """The path of the modules in which the call runs; in backward, of those of its forward."""
        node = torch._C._current_autograd_node()
        path = self.made_in.get(node._sequence_nr(), "") if node is not None else self._path()
        if len(self.made_in) >= _NODES:
            for oldest in list(self.made_in)[: _NODES // 4]:
                del self.made_in[oldest]
        # The first call that finds a node's number taken is the one that made the node.
        self.made_in.setdefault(_get_sequence_nr() - 1, path)
        return path

    def _path(self) -> str:
        modules = called_modules(sys._getframe(1))
        path = self.paths.get(modules)
        if path is None:
            path = self.paths[modules] = path_of(modules) or ""
            classes = (cls for module in modules for cls in type(module).__mro__)
            self.called.update(f"{cls.__module__}.{cls.__qualname__}" for cls in classes)
        return path


class Audit(DeterministicMode):
    """Records what the mode would do on CUDA, what the calls move, and does nothing of it.

    CPU and meta tensors count as CUDA tensors. Nothing is raised or warned, no CUDA kernel runs,
    and the results are those of the CPU.

    Args:
        warn_only: as the other arguments, those of :class:`~detmode.DeterministicMode`: what would
            be met under a mode with these.
        substitute: likewise.
        rules: likewise.
        overrides: likewise.
        fill_uninitialized_memory: likewise.
        log: likewise.
    """

    def __init__(
        self,
        warn_only: bool = False,
        *,
        substitute: bool = True,
        rules: RuleTable | None = None,
        overrides: Mapping[str, str] | None = None,
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
        self._floors: dict[torch._ops.OpOverload, Floor] = {}
        self._tally = _Tally()

    def report(self) -> AuditReport:
        """What has been met so far."""
        records = super().report().records
        tally = self._tally
        stand_ins = {name: getattr(room, "STANDS_FOR", {}) for name, room in rooms().items()}
        return AuditReport(
            records,
            (replace(tally.rows[_key(record)]) for record in records),
            {path: replace(cost) for path, cost in tally.modules.items()},
            replace(tally.total),
            tally.fill_bytes,
            find_unseen(self._table, stand_ins, tally.called, self._would_on_cuda),
        )

    def _plan(self, func: Any) -> Plan | None:
        """Also for operators that no rule lists: their bytes count."""
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
            # The operators that it is made of are counted.
            return super()._intercept(plan, args, kwargs, traced=traced)
        module, tally.acted = tally.module(), None
        result = super()._intercept(plan, args, kwargs, traced=traced)
        cost = tally.acted or _cost(self._floor(plan.func).bytes(args, kwargs, result), 0)
        tally.total.add(cost)
        tally.modules.setdefault(module, Cost()).add(cost)
        return result

    def _act(
        self,
        plan: Plan,
        row: Row | None,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        traced: bool,
    ) -> Any:
        asked = "allow" if self._trace.allows(plan.names) else plan.override
        would = self._would(row, asked, flag_is_on=_get_flag())
        if would is None:
            return plan.func(*args, **kwargs)
        record, _ = self._recorder.count(plan, row, would, call, self._trace)
        cost_of_row = self._tally.rows.setdefault(_key(record), Cost())
        held = _held(call.tensors[0]) if plan.variant == "inplace" else 0
        with flag(False):
            result = plan.func(*args, **kwargs)
        floor = self._floor(plan.func)
        if floor.allocates and would in ("native", "substitute"):
            filled = _held(result) - held
            self._tally.fill_bytes += filled
            cost = _cost(0, filled)
        else:
            moved = floor.bytes(args, kwargs, result)
            cost = _cost(moved, _extra(row, would, moved))
        cost_of_row.add(cost)
        self._tally.acted = cost
        return result

    def _floor(self, func: torch._ops.OpOverload) -> Floor:
        floor = self._floors.get(func)
        if floor is None:
            floor = self._floors[func] = Floor(func)
        return floor

    def _would(self, row: Row | None, asked: str | None, *, flag_is_on: bool) -> str | None:
        """What the mode would do with a call; ``None`` where it would let it pass."""
        if asked in ("allow", "native", "warn", "error"):
            return asked
        if row is None:
            # An override asks for a substitute, and no row says how.
            return None
        action = row.rule.action
        if isinstance(action, Substitute):
            if self._substitute or asked == "substitute":
                return "substitute"
            action = row.rule.natively
        if isinstance(action, Native) and flag_is_on:
            return "native"
        return "warn" if self._warn_only or row.rule.alert is None or not flag_is_on else "error"

    def _would_on_cuda(self, row: Row) -> str:
        """What the mode would do with a call of the row's operator that meets the row."""
        func = resolve(row.rule.op)
        plan = (self._plans.get(func) or self._plan(func)) if func is not None else None
        return self._would(row, plan.override if plan else None, flag_is_on=True) or "allow"


def _key(record: Record) -> tuple[str, str, str]:
    """What tells a report's rows apart."""
    return record.overload, record.action, record.site


def _held(tensor: torch.Tensor) -> int:
    """The bytes of memory that a tensor has; sparse ones are not filled."""
    return tensor.untyped_storage().nbytes() if tensor.layout is torch.strided else 0


def _extra(row: Row | None, would: str, moved: int) -> int | None:
    """The bytes that determinism adds to a call that moves ``moved``."""
    if would == "native":
        return None
    action = row.rule.action if row else None
    if would != "substitute" or not isinstance(action, Substitute):
        return 0
    return None if action.traffic is None else round((action.traffic - 1) * moved)


def audit(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> AuditReport:
    """Run ``fn(*args, **kwargs)`` as if on CUDA and report what each call would meet.

    The tensors are CPU or meta tensors; nothing is raised or warned, no CUDA kernel runs, and the
    results are those of the CPU. Backward is reported if ``fn`` runs it.

    Returns:
        An :class:`~detmode.auditing.AuditReport`: the action that the strict mode would take at
        each site, how many bytes it adds, and what an audit cannot see.

    Raises:
        Exception: what ``fn`` itself raises.
    """
    mode = Audit()
    with mode:
        fn(*args, **kwargs)
    return mode.report()


def _size(count: int) -> str:
    """``"1.5 MB"``."""
    amount, units = float(count), iter(("bytes", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while amount >= 1000 and unit != "TB":
        amount, unit = amount / 1000, next(units)
    return f"{amount:.0f} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"
