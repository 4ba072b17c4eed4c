"""The command ``doctor``."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from detmode.cli import options as option
from detmode.cli.locks import lock_here, read_lock
from detmode.cli.output import (
    STDOUT,
    check_output,
    form_of,
    give,
    rows_as_asked,
    say_next,
    show,
)

if TYPE_CHECKING:
    from pathlib import Path

    from detmode.environment.doctor import Finding

ABOUT = "list what in this environment can break or slow reproducibility"
EXAMPLES = ("", "--against detmode.lock", "--format github")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    lock = parser.add_argument_group("the lock")
    option.path(lock, "--against", metavar="FILE", help="list what differs from a lock too")
    output = parser.add_argument_group("the output")
    option.output(output, "table", "json", "github")
    option.quiet(output)


def run(options: argparse.Namespace) -> int:
    """Print the settings that can break or slow reproducibility here."""
    check_output(options)
    from detmode.environment.doctor import SEVERITIES, findings
    from detmode.reports.github import annotation
    from detmode.reports.page import plural

    against = _against(options.against) if options.against is not None else []
    found = (*against, *findings())
    counts = Counter(each.severity for each in found)
    head = ", ".join(plural(counts[each], each) for each in SEVERITIES if counts[each])
    form = form_of(options)
    if form == "github":
        lines = [
            annotation(
                each.severity,
                each.subject,
                ": ".join(filter(None, (each.state, each.effect, each.remedy))),
            )
            for each in found
            if each.severity != "note"
        ]
        text = "\n".join([*lines, head])
    else:
        columns = ("subject", "severity", "state", "effect", "remedy")
        rows = [each.as_text() for each in found]
        text = rows_as_asked(options, rows, columns, widths=(None, None, 40, 50, 50))
        if form == "table":
            text = f"{head}\n\n{text}"
    if options.quiet and options.file != STDOUT:
        show(head)
    if options.file is not None or not options.quiet:
        give(options, text)
    if counts["error"] or counts["warning"]:
        say_next(
            options, "follow the remedies from the top; `detmode run` sets the variables itself"
        )
    else:
        say_next(options, "`detmode audit script.py` says what a program's calls would do on CUDA")
    return 1 if counts["error"] else 0


def _against(path: Path) -> list[Finding]:
    """Return the differences from a lock."""
    from detmode.environment.doctor import Finding
    from detmode.environment.lock.drift import differences

    return [
        Finding(each.name, each.here, f"locked: {each.locked}", each.remedy, "error")
        for each in differences(read_lock(path), lock_here())
    ]
