"""What a mode intercepted: records, and the report as a table or JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace

from detmode.reports.modules import agreed
from detmode.reports.page import Group, Page, Table, TableRow, plural
from detmode.reports.shown import Shown
from detmode.reports.timeline import timeline_of

ERROR = Group("error", "error", "the call is refused, with PyTorch's message")
WARN = Group("warn", "warning", "the call may vary; it runs, and a warning is given")
ACTIONS = (
    ERROR,
    WARN,
    Group("allow", "warning", "the call may vary; it was allowed by name"),
    Group("substitute", "note", "a deterministic kernel runs in place of PyTorch's"),
    Group("native", "note", "PyTorch's own deterministic path runs"),
)
"""What a call can meet, what needs attention first."""

_NAMES = tuple(group.name for group in ACTIONS)
_COLUMNS = ("count", "overload", "action", "guarantee", "family", "alert", "site", "module")
_EMPTY = "detmode intercepted no call."


@dataclass
class ReportRow:
    """One row: the calls of one overload that met one action at one site.

    Args:
        overload: ``"aten::put_.default"``.
        family: the family of the rule, ``"user"`` for rules given by the user, ``None`` where
            only an override or an allow region spoke.
        action: ``"substitute"``, ``"native"``, ``"warn"``, ``"error"`` or ``"allow"``.
        guarantee: ``"run_to_run"``, ``"gpu_to_gpu"`` or ``None``.
        alert: PyTorch's caller name, or ``None``.
        count: how many calls.
        site: "file:line" of the user's code; for a backward operator, of the forward call.
        module: the ``nn.Module`` path of those calls, or ``None``; where they have several, a
            pattern, in which ``*`` stands for one name: ``"Net.layers.*"``.
        modules: how many of the calls each path has; calls in no module are in none.
    """

    overload: str
    family: str | None
    action: str
    guarantee: str | None
    alert: str | None
    count: int
    site: str
    module: str | None
    modules: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.module, self.modules = agreed(self.module, self.modules, self.count)


Record = ReportRow
"""The name that a row had first."""


class Report(Shown):
    """The rows of one mode, in the order in which they were first met.

    Attributes:
        records: the rows, a tuple of :class:`ReportRow`.
        first_calls: of the first calls in their order, the position of the row and the module.

    Args:
        records: the rows.
        first_calls: of the first calls in their order, the position of the row and the module.
    """

    def __init__(
        self, records: Iterable[ReportRow], first_calls: Iterable[tuple[int, str | None]] = ()
    ) -> None:
        self.records = tuple(records)
        self.first_calls = tuple(first_calls)

    def __str__(self) -> str:
        """A table: what needs attention first, files relative to the working directory."""
        if not self.records:
            return _EMPTY
        return self.page().table.text(without=("alert",))

    def ordered(self) -> list[ReportRow]:
        """The records, what needs attention first."""
        return sorted(self.records, key=lambda record: _NAMES.index(record.action))

    def page(self) -> Page:
        """What is shown: a row a record, what needs attention first."""
        verdict, severity = self._verdict()
        calls = [(module, self.records[row].action) for row, module in self.first_calls]
        total = sum(record.count for record in self.records)
        what = "calls" if len(calls) == total else f"calls, the first of {total:,}"
        return Page(
            title="What the mode intercepted",
            verdict=verdict,
            severity=severity,
            groups=ACTIONS,
            table=Table(_COLUMNS, tuple(map(_row, self.ordered()))),
            timeline=timeline_of(calls, len(calls), _NAMES, what) if calls else None,
        )

    def _verdict(self) -> tuple[str, str]:
        if not self.records:
            return _EMPTY, "note"
        counts = Counter[str]()
        for record in self.records:
            counts[record.action] += record.count
        for group, what in ((ERROR, "Refused"), (WARN, "Warned of, since they may vary")):
            if counts[group.name]:
                return f"{what}: {plural(counts[group.name], 'call')}.", group.level
        fine = plural(counts["substitute"] + counts["native"], "call")
        if counts["allow"]:
            allowed = plural(counts["allow"], "call")
            return f"Allowed to vary by name: {allowed}. Made deterministic: {fine}.", "warning"
        return f"Made deterministic: {fine}. No other was met that may vary.", "note"

    def __len__(self) -> int:
        return len(self.records)

    def to_json(self) -> str:
        """A JSON list of objects with the fields of :class:`ReportRow`."""
        return json.dumps([asdict(record) for record in self.records], indent=2)

    @staticmethod
    def from_json(text: str) -> Report:
        """The report that :meth:`to_json` wrote.

        Raises:
            ValueError: the text is not such a report.
        """
        names = {field.name for field in fields(ReportRow)}
        rows = json.loads(text)
        if not isinstance(rows, list) or any(
            not isinstance(row, dict) or set(row) != names for row in rows
        ):
            raise ValueError(f"not a report: expected a JSON list of objects with {sorted(names)}")
        return Report(ReportRow(**row) for row in rows)


def merged(records: Iterable[ReportRow]) -> list[ReportRow]:
    """The rows of several modes as those of one: one for each overload, action and site."""
    rows: dict[tuple[str, str, str], ReportRow] = {}
    for record in records:
        key = (record.overload, record.action, record.site)
        known = rows.get(key)
        if known is None:
            rows[key] = record
            continue
        modules = Counter(known.modules) + Counter(record.modules)
        rows[key] = replace(known, count=known.count + record.count, modules=modules)
    return list(rows.values())


def _row(record: ReportRow) -> TableRow:
    meaning = next(group.meaning for group in ACTIONS if group.name == record.action)
    outside = (None,) if sum(record.modules.values()) < record.count else ()
    return TableRow(
        cells=tuple(str(getattr(record, name) or "") for name in _COLUMNS),
        group=record.action,
        rule=record.overload,
        message=f"{record.overload}, {plural(record.count, 'call')}: {meaning}.",
        site=record.site,
        modules=(*record.modules, *outside),
    )
