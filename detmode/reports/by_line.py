"""The rows of a report for a terminal: below the user's line, with its text."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from detmode.process.text import in_a_line
from detmode.reports.page import TableRow, plural, shortened
from detmode.reports.terminal import cut, is_wider, painted, wrapped

_INDENT = 7
_ROWS = 12
"""The rows that a screen has room for."""


class Entry(NamedTuple):
    """One row.

    Args:
        row: of the table.
        head: its first columns.
        more: texts that follow the operator.
        level: of the colour that its group has in ``head``.
    """

    row: TableRow
    head: str
    more: tuple[str, ...] = ()
    level: str = "none"


def by_line(entries: Iterable[Entry], width: int | None, *, everything: bool = True) -> str:
    """Return rows below the lines of code that make their calls, the most urgent first.

    Args:
        entries: the rows.
        width: the columns of the terminal.
        everything: also those that a screen has no room for.
    """
    lines: dict[str, list[Entry]] = {}
    entries = iter(entries)
    for entry in islice(entries, None if everything or width is None else _ROWS):
        lines.setdefault(entry.row.own_line, []).append(entry)
    parts = [
        "\n".join([line_of(rows[0].row, width), *(_text(entry, width) for entry in rows)])
        for rows in lines.values()
    ]
    rest = len(list(entries))
    if rest:
        parts.append(
            wrapped("+ ", f"{plural(rest, 'row')} (--all, or long=True, shows them)", width)
        )
    return "\n".join(parts)


def line_of(row: TableRow, width: int | None) -> str:
    """Return the user's line: its place, and its text as far as there is room."""
    place = _fitting_path(in_a_line(shortened(row.own_line)), width)
    return cut(f"{place}  {in_a_line(row.source)}", width).rstrip()


def _fitting_path(path: str, width: int | None) -> str:
    """Return a path without the folders for which there is no room."""
    while width is not None and len(path) > width and "/" in path.removeprefix(".../"):
        path = f".../{path.removeprefix('.../').partition('/')[2]}"
    return path


def _text(entry: Entry, width: int | None) -> str:
    """Return a row: its head, the name that users write, the overload, and what follows."""
    row, rule = entry.row, entry.row.rule
    if is_wider(rule, width and width - _INDENT):
        rule = rule.removesuffix(".default").rpartition("::")[2]
    backward = " (backward)" if row.called and "backward" in row.rule else ""
    inside = f"in {shortened(row.site)}" if row.outer_site else ""
    parts = filter(None, (f"{row.called}{backward}", rule, *entry.more, inside))
    text = wrapped(entry.head, in_a_line("  ".join(parts)), width, _INDENT)
    return text.replace(row.group, painted(row.group, entry.level), 1)
