"""What commands print, and the files that they write."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detmode.cli.commands import UsageError
from detmode.reports.page import writable

if TYPE_CHECKING:
    from detmode.reports.shown import Shown

FILES = ("report", "html", "sarif")
"""The options that name a file for a report: as JSON, as a page, as SARIF."""

STDOUT = Path("-")
"""Given for a file: the report is written to stdout."""


def _files(options: argparse.Namespace) -> dict[str, Path]:
    """The files that were asked for, by the names of their options."""
    given = {name: getattr(options, name, None) for name in FILES}
    return {name: path for name, path in given.items() if path is not None}


def stdout_is_taken(options: argparse.Namespace) -> bool:
    """Whether a file that was asked for stands on stdout, alone."""
    return STDOUT in _files(options).values()


def check_files(options: argparse.Namespace) -> None:
    """Find out before the work whether its report can be written.

    Raises:
        UsageError: the folder of a file is missing, or cannot be written, or the file is a folder;
            or one file was asked for twice.
    """
    files = _files(options)
    for name, path in files.items():
        for other in FILES[: FILES.index(name)]:
            if files.get(other) == path:
                raise UsageError(f"--{other} and --{name}: both would be written to {path}")
        if path == STDOUT:
            continue
        folder = path.absolute().parent
        if not folder.is_dir():
            raise UsageError(f"--{name}: there is no folder {folder}")
        if path.is_dir():
            raise UsageError(f"--{name}: {path} is a folder; name a file")
        if not os.access(folder, os.W_OK):
            raise UsageError(f"--{name}: no permission to write to {folder}")


def write_files(options: argparse.Namespace, report: Shown) -> None:
    """Write a report to the files that were asked for."""
    texts = {"report": report.to_json, "html": report.to_html, "sarif": report.to_sarif}
    for name, path in _files(options).items():
        _write(path, texts[name]() + "\n")


def show(text: str) -> None:
    """Print on stdout, with escapes for what its encoding does not have."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def _write(path: Path, text: str) -> None:
    """All or nothing: a reader never finds half a report."""
    if path == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(writable(text).encode("utf-8", "surrogateescape"))
        return
    try:
        descriptor, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
        try:
            # A path's bytes that the locale cannot read stand in it as surrogates.
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(writable(text))
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)  # mkstemp makes it private
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    form: str,
    columns: Sequence[str],
    widths: Sequence[int | None] | None = None,
) -> None:
    """Print rows as a table, or as a JSON list of objects.

    On a terminal that is narrower than the table, each row is a paragraph.
    """
    if form == "json":
        print(json.dumps(rows, indent=2))
        return
    from tabulate import tabulate

    cells = [[_cell(row, column) for column in columns] for row in rows]
    table = tabulate(
        cells, headers=columns, disable_numparse=True, maxcolwidths=widths if cells else None
    )
    width = shutil.get_terminal_size().columns
    if sys.stdout.isatty() and max(map(len, table.splitlines())) > width:
        print("\n\n".join(_paragraph(row, columns, width) for row in cells))
    else:
        print(table)


def _paragraph(row: Sequence[str], columns: Sequence[str], width: int) -> str:
    """What a row says, a line for each column that is not empty, wrapped."""
    indent = max(map(len, columns[1:])) + 4
    lines = [row[0]]
    lines += (
        textwrap.fill(
            text,
            width,
            initial_indent=f"  {column}".ljust(indent),
            subsequent_indent=" " * indent,
            break_long_words=False,
        )
        for column, text in zip(columns[1:], row[1:])
        if text
    )
    return "\n".join(lines)


def _cell(row: Mapping[str, Any], column: str) -> str:
    if column == "versions":
        from detmode.environment.versions import version_range

        return version_range(row["since"], row["until"])
    key = "error_over_aten" if column == "error / ATen's" else column
    value = row[key]
    return "" if value is None else str(value)
