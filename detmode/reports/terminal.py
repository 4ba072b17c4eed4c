"""Texts that fit a terminal: the one place that knows its width, and wraps."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO


def terminal_width(stream: TextIO | None) -> int | None:
    """The columns of the terminal that a stream writes to; ``None`` for a file or a pipe.

    ``COLUMNS`` in the environment wins, as in :func:`shutil.get_terminal_size`, which asks about
    stdout alone.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None if stream else None
    except (AttributeError, OSError, ValueError):  # ValueError: a stream of memory, or a closed one
        return None


_COLOURS = {"error": "31", "warning": "33", "note": "32"}
"""By level: red, yellow, green."""

_PAINT = re.compile("\x1b\\[[0-9;]*m")


def has_colour(stream: TextIO | None) -> bool:
    """Return whether a text for a stream may be coloured: on a terminal, without ``NO_COLOR``.

    Of Windows' terminals those that are known to show colours.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    if sys.platform == "win32" and "WT_SESSION" not in os.environ:
        return False
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # a closed one
        return False


def painted(text: str, level: str, colour: bool = True) -> str:
    """Return a text in the colour of a level, if it has one and ``colour`` is true."""
    code = _COLOURS.get(level) if colour else None
    return f"\x1b[{code}m{text}\x1b[0m" if code and text else text


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int | None] | None = None,
) -> str:
    """Columns side by side.

    Args:
        columns: the headings.
        rows: a text for each column.
        widths: at how many characters the cells of each column are wrapped.
    """
    from tabulate import tabulate  # a table is printed once, and detmode imported always

    cells = widths if rows else None
    return str(tabulate(rows, headers=columns, disable_numparse=True, maxcolwidths=cells))


def is_wider(text: str, width: int | None) -> bool:
    """Return whether a line of the text is too wide; every text fits if the width is unknown."""
    lines = _PAINT.sub("", text).splitlines()
    return width is not None and max(map(len, lines), default=0) > width


def paragraphs(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None
) -> str:
    """A paragraph for each row: its first cell, and a line for each other that is not empty.

    Args:
        columns: names of the cells.
        rows: a text for each column.
        width: at how many characters lines are wrapped.
    """
    indent = max(map(len, columns[1:])) + 4

    def line(name: str, text: str) -> str:
        return wrapped(f"  {name}".ljust(indent), text, width)

    return "\n\n".join(
        "\n".join([row[0], *(line(*cell) for cell in zip(columns[1:], row[1:]) if cell[1])])
        for row in rows
    )


def wrapped(head: str, text: str, width: int | None, indent: int | None = None) -> str:
    """Return a text behind its heading, in lines of at most ``width`` characters.

    A name or a path is broken only where it has no room on a line of its own.

    Args:
        head: the heading; none of it is lost.
        text: a paragraph.
        width: ``None`` for one line, however long.
        indent: of further lines; ``None`` is below the text's beginning. Where a word has no room
            there, the text begins below the heading.
    """
    if width is None or len(head) + len(text) <= width:
        return head + text
    indent = len(head) if indent is None else indent
    longest = max(map(len, text.split()), default=0)
    if longest > width - max(indent, len(head)) and head.strip():
        return "\n".join(filter(None, (head.rstrip(), wrapped(" " * min(indent, 4), text, width))))
    return textwrap.fill(
        text,
        width,
        initial_indent=head,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    )


def fitted(text: str, width: int | None) -> str:
    """Return a text whose lines that are too wide are wrapped, each indented as it was."""
    if not is_wider(text, width):
        return text
    return "\n".join(_fitted(line, width) for line in text.split("\n"))


def _fitted(line: str, width: int | None) -> str:
    if not is_wider(line, width):
        return line
    indent = len(line) - len(line.lstrip())
    return wrapped(" " * indent, line.lstrip(), width, indent + 2 * (not indent))


def cut(text: str, width: int | None) -> str:
    """Return a line's beginning, as far as it fits."""
    return (
        text if width is None or len(text) <= width else f"{text[: max(width - 3, 0)].rstrip()}..."
    )
