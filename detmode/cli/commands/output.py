"""The output of commands: printed tables, and files."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from detmode.cli.commands import UsageError
from detmode.reports.page import writable
from detmode.reports.terminal import is_wider, paragraphs, table, terminal_width

if TYPE_CHECKING:
    from detmode.reports.report import Report
    from detmode.reports.shown import Shown

FILES = ("report", "html", "sarif")
"""The options that name a file for a report: as JSON, as a page, as SARIF."""

STDOUT = Path("-")
"""Given for a file: the report is written to stdout."""


def _files(options: argparse.Namespace) -> dict[str, Path]:
    """Return the requested files, by the names of their options."""
    given = {name: getattr(options, name, None) for name in FILES}
    return {name: path for name, path in given.items() if path is not None}


def stdout_is_taken(options: argparse.Namespace) -> bool:
    """Return whether a requested file is written to stdout, which must then hold nothing else."""
    return STDOUT in _files(options).values()


def check_files(options: argparse.Namespace) -> None:
    """Check before the work that its report can be written.

    Raises:
        UsageError: the folder of a file is missing, or cannot be written, or the file is a folder;
            or one file was requested twice.
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


def rename_files(options: argparse.Namespace, part: str) -> None:
    """Put a part into the names of the requested files: ``report.json``, ``report.node1.json``."""
    for name, path in _files(options).items():
        if path != STDOUT:
            setattr(options, name, path.with_name(f"{path.stem}.{part}{path.suffix}"))


def write_files(options: argparse.Namespace, report: Shown) -> None:
    """Write a report to the requested files."""
    texts = {"report": report.to_json, "html": report.to_html, "sarif": report.to_sarif}
    for name, path in _files(options).items():
        _write(path, texts[name]() + "\n")


def as_asked(options: argparse.Namespace, report: Report, stream: TextIO) -> str:
    """A report as ``--quiet``, ``--long`` or ``--format`` ask for it, for a stream."""
    if options.quiet:
        return report.verdict
    if options.format == "json":
        return report.to_json()
    return report.text(long=options.long, width=terminal_width(stream))


def show(text: str) -> None:
    """Print on stdout, with escapes for what its encoding does not have."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def _write(path: Path, text: str) -> None:
    """Write a file atomically, so that a reader never finds half a report."""
    # A path's bytes that the locale cannot read stand in it as surrogates.
    content = writable(text).encode("utf-8", "surrogateescape")
    if path == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        return
    from detmode.cuda.files import replace_file  # with PyTorch, which most commands have by now

    try:
        replace_file(path, content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    form: str,
    columns: Sequence[str],
    widths: Sequence[int | None] | None = None,
    more: Sequence[str] = (),
    *,
    long: bool = False,
) -> None:
    """Print rows as a table, or as a JSON list of objects.

    Where a terminal is narrower than the table, each row is a paragraph.

    Args:
        rows: by the names of their fields.
        form: ``"table"`` or ``"json"``.
        columns: the fields that a table shows.
        widths: at how many characters the cells of each column are wrapped.
        more: the fields that only paragraphs have room for.
        long: print paragraphs, however wide the terminal is.
    """
    if form == "json":
        show(json.dumps(rows, indent=2))
        return
    width = terminal_width(sys.stdout)
    text = table(columns, [[_cell(row, name) for name in columns] for row in rows], widths)
    if rows and (long or is_wider(text, width)):
        names = [*columns, *more]
        text = paragraphs(names, [[_cell(row, name) for name in names] for row in rows], width)
    show(text)


def _cell(row: Mapping[str, Any], column: str) -> str:
    if column == "versions":
        from detmode.environment.versions import version_range

        return version_range(row["since"], row["until"])
    key = "error_over_aten" if column == "error / ATen's" else column
    value = row[key]
    return "" if value is None else str(value)
