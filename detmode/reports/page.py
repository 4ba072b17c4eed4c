"""One model for all reports: what is shown, without how.

A report (of a mode, an audit, a comparison, a probe) gives a :class:`Page`; text, SARIF and HTML
are made from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from detmode.process.text import in_a_line
from detmode.reports.terminal import wrapped
from detmode.reports.timeline import Timeline
from detmode.table.call_site import installed_part


@dataclass(frozen=True)
class Group:
    """A group to filter rows by: an action of the mode, or a way in which calls differ.

    Args:
        name: a word.
        level: SARIF's word for how much it matters: "error", "warning", "note" or "none".
        meaning: one line.
    """

    name: str
    level: str
    meaning: str


@dataclass(frozen=True)
class TableRow:
    """One line of a report's table.

    Args:
        cells: a text for each column.
        group: the name of one of the page's groups.
        rule: the line's subject, the same in every run: an overload's name.
        message: the line as a sentence.
        site: "file:line", or what is known instead.
        modules: the ``nn.Module`` paths of its calls; ``None`` for calls in no module.
        outer_site: the line of the user's own program that leads to ``site``, if it is another.
        more: names and texts that are too long for a column.
        source: the text of the user's line, where it is known.
        called: the name under which users call the operator, where one is known.
        is_point: true if two runs diverge at a call of this line.
    """

    cells: tuple[str, ...]
    group: str
    rule: str
    message: str
    site: str
    modules: tuple[str | None, ...] = (None,)
    outer_site: str | None = None
    more: tuple[tuple[str, str], ...] = ()
    source: str = ""
    called: str = ""
    is_point: bool = False

    @property
    def details(self) -> tuple[tuple[str, str], ...]:
        """Names and texts of all that has no column: the code, the function's name, and more."""
        return *filter(itemgetter(1), (("code", self.source), ("called", self.called))), *self.more

    @property
    def own_line(self) -> str:
        """The line of the user's own program, as "file:line"."""
        return self.outer_site or self.site


@dataclass(frozen=True)
class Opened:
    """A call that is shown with both of its sides.

    Args:
        title: the reason why it is shown.
        facts: its properties: the name, and the texts in the first and in the second run.
        advice: paragraphs that say what to do.
        counts: titled counts to draw: ``(title, ((label, count), ...))``.
    """

    title: str
    facts: tuple[tuple[str, str, str], ...]
    advice: tuple[str, ...] = ()
    counts: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()


@dataclass(frozen=True)
class Listing:
    """Something more that is known, with a table or without.

    Args:
        title: its heading.
        columns: of the table.
        rows: a text for each column.
        text: a paragraph above the table.
    """

    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Page:
    """All that a report shows.

    Args:
        title: the page's heading.
        verdict: the result, in a sentence.
        severity: its weight, in the words of :attr:`Group.level`.
        facts: further sentences.
        groups: names by which the rows can be filtered, in the order of the legend.
        columns: of the table, by name.
        rows: its lines.
        timeline: the calls in their order, by module.
        opened: calls with both sides.
        listings: further tables, opened one by one.
        origin: names and texts: the command, the versions.
    """

    title: str
    verdict: str
    severity: str
    groups: tuple[Group, ...]
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    facts: tuple[str, ...] = ()
    timeline: Timeline | None = None
    opened: tuple[Opened, ...] = ()
    listings: tuple[Listing, ...] = ()
    origin: tuple[tuple[str, str], ...] = ()

    def level(self, group: str) -> str:
        """Return the level of a group's rows."""
        return next(drawn.level for drawn in self.groups if drawn.name == group)

    def cells(self, columns: Sequence[str]) -> list[list[str]]:
        """The texts of some columns, a list for each row; files as they are shown."""
        places = [self.columns.index(name) for name in columns]
        return [[in_a_line(shortened(row.cells[place])) for place in places] for row in self.rows]


def listed(rows: Iterable[tuple[str, str]], width: int | None = None) -> str:
    """Names and what they have, a line each, as far as it fits.

    Not by tabulate, which pads every cell to the longest: that of a call of 100,000 tensors may be
    long.
    """
    rows = list(rows)
    column = max((len(name) for name, _ in rows), default=0)
    return "\n".join(wrapped(f"{name:{column}}  ", value, width) for name, value in rows)


def shortened(site: str) -> str:
    """A site with its file relative to the working directory, or to where packages are installed.

    What is in neither is shown as it is.
    """
    installed = installed_part(site) if os.path.isabs(site) else None
    return installed or site.removeprefix(os.path.join(working_folder(), ""))


def working_folder() -> str:
    """Return the working directory; the root where a program has removed its own."""
    try:
        return os.getcwd()
    except OSError:
        return os.path.abspath(os.sep)


def plural(count: int, noun: str) -> str:
    """``1 call``, ``2 calls``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
