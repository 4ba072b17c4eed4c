"""The output of commands: forms of reports, printed tables, and files."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from detmode.cli.streams import say, write
from detmode.cli.usage import UsageError
from detmode.process.files import replace_file
from detmode.process.rank import rank_of
from detmode.process.text import in_a_line, writable
from detmode.reports.page import shortened
from detmode.reports.terminal import (
    has_colour,
    is_wider,
    painted,
    paragraphs,
    table,
    terminal_width,
)

if TYPE_CHECKING:
    from detmode.reports.shown import Shown

FORMATS = ("table", "json", "sarif", "html", "github")
"""The forms of a report; a command that gives no report offers some of them."""

FILES = {"report": "json", "html": "html", "sarif": "sarif"}
"""Options that name a file for a report too, and its form there."""

STDOUT = Path("-")
"""Given for a file: the report is written to stdout."""

_BY_SUFFIX = {".json": "json", ".sarif": "sarif", ".html": "html"}
_LEVELS = {"error": "error", "warning": "warning", "failed": "error", "holds": "note"}
"""Words in columns of rows, by which these are coloured."""


class _File(NamedTuple):
    option: str
    name: str
    path: Path
    form: str


def form_of(options: argparse.Namespace) -> str:
    """Return the form for which ``--format`` asks, or else the ending of the file of ``-o``.

    Raises:
        UsageError: the command does not offer the form of that ending.
    """
    if options.format is not None:
        return str(options.format)
    form = _BY_SUFFIX.get(options.file.suffix, "table") if options.file else "table"
    if form not in options.formats:
        raise UsageError(
            f"-o {options.file}: {form} is no form of this command's output; "
            f"give --format {' or '.join(options.formats)}"
        )
    return form


def _files(options: argparse.Namespace) -> list[_File]:
    forms = {name: form for name, form in FILES.items() if getattr(options, name, None)}
    if getattr(options, "file", None):
        forms["file"] = form_of(options)
    return [
        _File("-o" if name == "file" else f"--{name}", name, getattr(options, name), form)
        for name, form in forms.items()
    ]


def stdout_is_taken(options: argparse.Namespace) -> bool:
    """Return whether a requested file is written to stdout, which must then hold nothing else."""
    return any(file.path == STDOUT for file in _files(options))


def check_output(options: argparse.Namespace) -> None:
    """Check before the work that its report can be written, wherever a program goes meanwhile.

    Raises:
        UsageError: the folder of a file is missing, or cannot be written, or the file is a folder;
            one file was requested twice; or options ask for different forms.
    """
    _make_absolute(options)
    if "format" in options and form_of(options) != "table":
        form = form_of(options)
        if getattr(options, "long", False):
            raise UsageError(f"--all is about the table; {form} has all that is known")
        if getattr(options, "quiet", False) and options.file is None:
            raise UsageError(f"--quiet prints the verdict alone; give {form} a file, with -o")
    files = _files(options)
    for place, (option, _, path, _) in enumerate(files):
        for earlier in files[:place]:
            if earlier.path == path:
                both = f"{earlier.option} and {option}"
                raise UsageError(f"{both}: both would be written to {shortened(str(path))}")
        if path != STDOUT:
            _check_writable(option, path)


def _make_absolute(options: argparse.Namespace) -> None:
    """Make the files that a command writes absolute: a program may change its folder."""
    for name in (*FILES, "file", "output", "lock"):
        path = getattr(options, name, None)
        if path is not None and path != STDOUT:
            try:
                setattr(options, name, path.absolute())
            except OSError as error:
                # A lock that is neither read nor written has a name all the same.
                if name != "lock":
                    raise UsageError(
                        f"{path}: the working directory is gone; give an absolute path, or start "
                        "in another directory"
                    ) from error


def _check_writable(option: str, path: Path) -> None:
    if path.exists() and not (path.is_file() or path.is_dir()):  # a device or a pipe
        if not os.access(path, os.W_OK):
            raise UsageError(f"{option}: no permission to write to {path}")
        return
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise UsageError(f"{option}: there is no folder {folder}")
    if path.is_dir():
        raise UsageError(f"{option}: {path} is a folder; name a file")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{option}: no permission to write to {folder}")


def rename_files(options: argparse.Namespace, part: str) -> None:
    """Put a part into the names of the requested files: ``report.json``, ``report.node1.json``."""
    for file in _files(options):
        if file.path != STDOUT:
            path = file.path.with_name(f"{file.path.stem}.{part}{file.path.suffix}")
            setattr(options, file.name, path)


def heading_of_rank(options: argparse.Namespace) -> str:
    """Give each of several ranks files of its own; return the heading of its report."""
    rank = rank_of()
    if rank is None or rank.world_size == 1:
        return ""
    rename_files(options, rank.name)
    return f"rank {rank.number}\n" if form_of(options) == "table" else ""


def write_files(options: argparse.Namespace, report: Shown) -> None:
    """Write a report to the requested files."""
    for file in _files(options):
        _write(file.path, _in_form(report, file.form))
        if file.name == "file":
            _say_written(options)


def _say_written(options: argparse.Namespace) -> None:
    if options.file != STDOUT and not getattr(options, "quiet", False):
        say(f"detmode: written to {shortened(str(options.file))}")


def _in_form(report: Shown, form: str) -> str:
    texts = {
        "table": report.text,
        "json": report.to_json,
        "sarif": report.to_sarif,
        "html": report.to_html,
        "github": report.to_github,
    }
    return texts[form]()


def as_asked(options: argparse.Namespace, report: Shown, stream: TextIO) -> str:
    """A report for a stream, as the options ask for it.

    With ``--quiet`` it is the verdict alone; where the report goes to a file, also the next step.
    """
    width, colour = terminal_width(stream), has_colour(stream)
    if options.quiet:
        return painted(in_a_line(report.verdict), report.page().severity, colour)
    if options.file is not None:
        return report.opening(width=width, colour=colour)
    form = form_of(options)
    if form != "table":
        return _in_form(report, form)
    return report.text(long=getattr(options, "long", False), width=width, colour=colour)


def show(text: str) -> None:
    """Print on stdout, with escapes for what its encoding does not have."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    write(sys.stdout, f"{text}\n".encode(encoding, "backslashreplace").decode(encoding))


def note(text: str) -> None:
    """Print a line on stderr about what was done otherwise, or not at all."""
    say(f"detmode: note: {text}")


def say_next(options: argparse.Namespace, step: str) -> None:
    """Print the next step on stderr, after a table on stdout."""
    if not getattr(options, "quiet", False) and form_of(options) == "table":
        say(f"next: {step}")


def give(options: argparse.Namespace, text: str) -> None:
    """Print a command's whole output, or write it to the file of ``-o``."""
    if options.file is None:
        show(text)
    else:
        _write(options.file, text)
        _say_written(options)


def _write(path: Path, text: str) -> None:
    """Write a file atomically, so that a reader never finds half a report."""
    # A path's bytes that the locale cannot read stand in it as surrogates.
    content = f"{writable(text)}\n".encode("utf-8", "surrogateescape")
    if path == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        return
    try:
        replace_file(path, content)
    except OSError as error:
        where = _keep(content, path.suffix)
        raise UsageError(f"cannot write {shortened(str(path))}: {error.strerror}{where}") from error


def _keep(content: bytes, suffix: str) -> str:
    """Write what cannot be written where it was asked for, so that a run is not lost; say where."""
    import tempfile  # with the first such file

    try:
        path = Path(tempfile.gettempdir(), f"detmode-{os.urandom(4).hex()}{suffix}")
        replace_file(path, content, 0o600)
    except OSError:
        return ""
    return f"; it is in {path}"


def rows_as_asked(
    options: argparse.Namespace,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    widths: Sequence[int | None] | None = None,
    more: Sequence[str] = (),
    *,
    long: bool = False,
) -> str:
    """Return rows as a table, or as a JSON list of objects.

    Where a terminal is narrower than the table, each row is a paragraph.

    Args:
        options: of the command.
        rows: by the names of their fields.
        columns: the fields that a table shows.
        widths: at how many characters the cells of each column are wrapped.
        more: the fields that only paragraphs have room for.
        long: paragraphs, however wide the terminal is.
    """
    if form_of(options) == "json":
        return json.dumps(rows, indent=2)
    is_printed = options.file is None
    width = terminal_width(sys.stdout) if is_printed else None
    colour = is_printed and has_colour(sys.stdout)
    text = table(columns, [[_cell(row, name, colour) for name in columns] for row in rows], widths)
    if rows and (long or is_wider(text, width)):
        names = [*columns, *more]
        cells = [[_cell(row, name, colour) for name in names] for row in rows]
        text = paragraphs(names, cells, width)
    return text


def _cell(row: Mapping[str, Any], column: str, colour: bool) -> str:
    if column == "versions":
        from detmode.process.versions import version_range

        return version_range(row["since"], row["until"])
    key = "error_over_aten" if column == "error / ATen's" else column
    value = row[key]
    text = "" if value is None else str(value)
    if column in ("severity", "verdict"):
        return painted(text, _LEVELS.get(text, "none"), colour)
    return text
