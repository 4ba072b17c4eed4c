"""The rows of a report: the actions that they tell of, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from detmode.process.rank import written
from detmode.process.text import in_a_line
from detmode.reports.by_line import Entry, by_line, line_of
from detmode.reports.page import Group, Page, TableRow, plural, shortened
from detmode.reports.terminal import painted, paragraphs
from detmode.sites.source_lines import source_of

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


def row_of(record: ReportRow, columns: Sequence[str]) -> TableRow:
    """Return a row as a line of the table."""
    from detmode.reports.written_as import written_as  # needs PyTorch; a report is read without

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
    source = source_of(record.outer_site or record.site)
    return TableRow(
        cells=tuple(str(texts[name] or "") for name in columns),
        group=record.action,
        rule=record.overload,
        message=f"{record.overload}, {plural(record.count, 'call')}: {meaning}{words}.",
        site=record.site,
        modules=(*record.modules, *outside),
        outer_site=outer,
        more=tuple((name, text) for name, text in more.items() if text),
        source=source,
        called=written_as(record.overload, source),
    )


def text_of(shown: Page, *, long: bool, width: int | None, colour: bool) -> str:
    """Return the rows of a report as text: by their lines, or a paragraph for each."""
    levels = {group.name: group.level if colour else "none" for group in ACTIONS}
    added = shown.columns[len(COLUMNS) :]
    if long:
        columns = ("overload", "count", *COLUMNS[2:], *added)
        return "\n\n".join(
            _paragraph(row, columns, cells, width, levels[row.group])
            for row, cells in zip(shown.rows, shown.cells(columns))
        )
    columns = ("count", "action", "guarantee", "module", *added)
    entries = [
        Entry(
            row,
            f"{count:>5}  {action:10}  {guarantee:10}  ",
            (module, *(f"{name} {cell}" for name, cell in zip(added, cells) if cell)),
            levels[action],
        )
        for row, (count, action, guarantee, module, *cells) in zip(shown.rows, shown.cells(columns))
    ]
    head = "count  action      guarantee   call"
    return f"{head}\n{by_line(entries, width, everything=False)}"


def _paragraph(
    row: TableRow, columns: Sequence[str], cells: list[str], width: int | None, level: str
) -> str:
    names = ("line", "called", *columns, *(name for name, _ in row.more))
    more = (in_a_line(text) for _, text in row.more)
    text = paragraphs(names, [[line_of(row, width), row.called, *cells, *more]], width)
    return text.replace(f" {row.group}", f" {painted(row.group, level)}", 1)
