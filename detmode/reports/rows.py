"""The rows of a report: the actions that they tell of, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from detmode.process.rank import written
from detmode.reports.page import Group, Table, TableRow, plural, shortened
from detmode.reports.terminal import is_wider, painted, paragraphs, table

if TYPE_CHECKING:
    from detmode.reports.report_row import ReportRow

ERROR = Group("error", "error", "the call is refused")
WARN = Group("warn", "warning", "the call may vary; it runs, and a warning is given")
ACTIONS = (
    ERROR,
    WARN,
    Group("allow", "warning", "the call may vary; it was allowed by name"),
    Group("substitute", "note", "a deterministic kernel runs in place of PyTorch's"),
    Group("native", "note", "PyTorch's own deterministic path runs"),
)
"""Actions on a call, those that need attention first."""

COLUMNS = ("count", "overload", "action", "guarantee", "family", "alert", "site", "module")
_SHOWN = tuple(name for name in COLUMNS if name != "alert")
_NARROW = 120
"""In fewer columns a row takes two lines."""


def row_of(record: ReportRow, columns: Sequence[str]) -> TableRow:
    """Return a row as a line of the table."""
    meaning = next(group.meaning for group in ACTIONS if group.name == record.action)
    words = ", with PyTorch's message" if record.action == "error" and record.alert else ""
    outside = (None,) if sum(record.modules.values()) < record.count else ()
    outer = record.outer_site if record.outer_site != record.site else None
    more = {
        "outer_site": outer and shortened(outer),
        "because": record.because,
        "remedy": record.remedy,
    }
    texts = {**vars(record), "ranks": written(record.ranks)}
    return TableRow(
        cells=tuple(str(texts[name] or "") for name in columns),
        group=record.action,
        rule=record.overload,
        message=f"{record.overload}, {plural(record.count, 'call')}: {meaning}{words}.",
        site=record.site,
        modules=(*record.modules, *outside),
        outer_site=outer,
        more=tuple((name, text) for name, text in more.items() if text),
    )


def text_of(shown: Table, *, long: bool, width: int | None, colour: bool) -> str:
    """Return the rows of a report as text, with a paragraph, a line or two lines for each."""
    added = shown.columns[len(COLUMNS) :]
    levels = {group.name: group.level if colour else "none" for group in ACTIONS}

    def cells_of(columns: Sequence[str]) -> list[list[str]]:
        place = columns.index("action")
        rows = shown.cells(columns)
        for row in rows:
            row[place] = painted(row[place], levels[row[place]])
        return rows

    if long:
        columns = ("overload", "count", *COLUMNS[2:], *added)
        return "\n\n".join(
            paragraphs(
                (*columns, *(name for name, _ in row.more)),
                [[*cells, *(text for _, text in row.more)]],
                width,
            )
            for row, cells in zip(shown.rows, cells_of(columns))
        )
    wide = (*_SHOWN, *added)
    text = table(wide, cells_of(wide))
    if width is None or (width >= _NARROW and not is_wider(text, width)):
        return text
    lines = ["count  action      overload", "       guarantee   site  module"]
    lines.append("-----  ----------  " + "-" * min(width - 19, 44))
    columns = ("count", "action", "overload", "guarantee", "site", "module", *added)
    for count, action, overload, guarantee, *where in shown.cells(columns):
        places = [*where[:2], *(f"{name} {cell}" for name, cell in zip(added, where[2:]))]
        lines.append(f"{count:>5}  {painted(f'{action:10}', levels[action])}  {overload}")
        lines.append(f"{'':5}  {guarantee:10}  {'  '.join(filter(None, places))}")
    return "\n".join(lines)
