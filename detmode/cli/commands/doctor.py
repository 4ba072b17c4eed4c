"""The command ``doctor``."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from detmode.cli import options as option
from detmode.cli.locks import ENVIRONMENT, lock_here, read_lock
from detmode.cli.output import STDOUT, check_output, form_of, give, rows_as_asked, say_next, show

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
    kind = output.add_mutually_exclusive_group()
    option.quiet(kind)
    about = "print the notes too: what is fine, or matters elsewhere"
    kind.add_argument("--all", "--long", action="store_true", help=about)


def run(options: argparse.Namespace) -> int:
    """Print the settings that can break or slow reproducibility here."""
    check_output(options)
    from detmode.environment.doctor import SEVERITIES, findings
    from detmode.reports.github import annotation
    from detmode.reports.page import plural

    against = _against(options.against) if options.against is not None else []
    everything = (*against, *map(_as_under_run, findings()))
    counts = Counter(finding.severity for finding in everything)
    head = ", ".join(plural(counts[name], name) for name in SEVERITIES if counts[name])
    form = form_of(options)
    # A file in JSON is for programs, which filter themselves.
    shows_notes = options.all or form == "json"
    shown = [finding for finding in everything if shows_notes or finding.severity != "note"]
    if form == "github":
        lines = [
            annotation(
                finding.severity,
                finding.subject,
                ": ".join(filter(None, (finding.state, finding.effect, finding.remedy))),
            )
            for finding in shown
        ]
        text = "\n".join([*lines, head])
    else:
        columns = ("subject", "severity", "state", "effect", "remedy")
        rows = list(map(asdict, shown))
        text = rows_as_asked(options, rows, columns, widths=(None, None, 40, 50, 50))
        if form == "table":
            hidden = "" if shows_notes or not counts["note"] else " (--all shows them)"
            text = f"{head}{hidden}\n\n{text}" if rows else f"nothing to do: {head}{hidden}"
    if options.quiet and options.file != STDOUT:
        show(head)
    if options.file is not None or not options.quiet:
        give(options, text)
    if counts["error"] or counts["warning"]:
        say_next(options, "follow the remedies from the top")
    else:
        say_next(options, "`detmode audit script.py` says what a program's calls would do on CUDA")
    return 1 if counts["error"] else 0


def _as_under_run(finding: Finding) -> Finding:
    """Return a finding as a note if its remedy is a variable that ``detmode run`` sets."""
    remedy = finding.remedy or ""
    is_set = any(name in remedy and name not in os.environ for name in ENVIRONMENT)
    if not is_set or finding.severity == "error":
        return finding
    said = "" if "`detmode run` sets" in remedy else "; `detmode run` sets the variable"
    return replace(finding, effect=f"{finding.effect}{said}", severity="note")


def _against(path: Path) -> list[Finding]:
    from detmode.environment.doctor import Finding
    from detmode.environment.lock.drift import differences

    return [
        Finding(name, here, f"locked: {locked}", remedy, "error")
        for name, locked, here, remedy in differences(read_lock(path), lock_here())
    ]
