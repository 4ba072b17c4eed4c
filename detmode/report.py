"""What a mode intercepted: records, and the report as a table or JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

_ACTIONS = ("error", "warn", "allow", "substitute", "native")


@dataclass
class Record:
    """One row: the calls of one overload that met one action at one site.

    Args:
        overload: ``"aten::put_.default"``.
        room: the room of the rule, ``"user"`` for rules given by the user, ``None`` where only an
            override or an allow region spoke.
        action: ``"substitute"``, ``"native"``, ``"warn"``, ``"error"`` or ``"allow"``.
        guarantee: ``"run_to_run"``, ``"gpu_to_gpu"`` or ``None``.
        alert: PyTorch's caller name, or ``None``.
        count: how many calls.
        site: "file:line" of the user's code; for a backward operator, of the forward call.
        module: the ``nn.Module`` path of that call, or ``None``.
    """

    overload: str
    room: str | None
    action: str
    guarantee: str | None
    alert: str | None
    count: int
    site: str
    module: str | None


class Report:
    """The rows of one mode, in the order in which they were first met.

    Attributes:
        records: the rows, a tuple of :class:`Record`.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = tuple(records)

    def __str__(self) -> str:
        """A table: what needs attention first, files relative to the working directory."""
        if not self.records:
            return "detmode intercepted no call."
        from tabulate import tabulate  # a table is printed once, and detmode imported always

        here = os.path.join(os.getcwd(), "")
        columns = ("count", "overload", "action", "guarantee", "room", "site", "module")
        rows = []
        for record in sorted(self.records, key=lambda record: _ACTIONS.index(record.action)):
            cells = {name: getattr(record, name) or "" for name in columns}
            cells["site"] = record.site.removeprefix(here)
            rows.append([cells[name] for name in columns])
        return str(tabulate(rows, headers=columns, disable_numparse=True))

    def __len__(self) -> int:
        return len(self.records)

    def to_json(self) -> str:
        """A JSON list of objects with the fields of :class:`Record`."""
        return json.dumps([asdict(record) for record in self.records], indent=2)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report that :meth:`to_json` wrote.

        Raises:
            ValueError: the text is not such a report.
        """
        names = {field.name for field in fields(Record)}
        rows = json.loads(text)
        if not isinstance(rows, list) or any(
            not isinstance(row, dict) or set(row) != names for row in rows
        ):
            raise ValueError(f"not a report: expected a JSON list of objects with {sorted(names)}")
        return cls(Record(**row) for row in rows)
