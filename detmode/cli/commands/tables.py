"""The commands that check: two recorded runs, this environment, and every claim of the table."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import TYPE_CHECKING

from detmode.cli.commands import UsageError
from detmode.cli.commands.locks import lock_here, read_lock
from detmode.cli.commands.output import (
    STDOUT,
    as_asked,
    check_output,
    form_of,
    give,
    note,
    rows_as_asked,
    say_next,
    show,
    stdout_is_taken,
    write_files,
)

if TYPE_CHECKING:
    from pathlib import Path

    from detmode.environment.doctor import Finding


def diff(options: argparse.Namespace, arguments: list[str]) -> int:
    """Say where two recorded runs diverge."""
    check_output(options)
    from detmode.runs.ranks import diff as compare
    from detmode.runs.trace_file import TraceError

    try:
        comparison = compare(options.first, options.second)
    except TraceError as error:
        raise UsageError(str(error)) from error
    if not stdout_is_taken(options):
        show(as_asked(options, comparison, sys.stdout))
    write_files(options, comparison)
    return 0 if comparison.identical else 1


def doctor(options: argparse.Namespace, arguments: list[str]) -> int:
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


def verify(options: argparse.Namespace, arguments: list[str]) -> int:
    """Check every claim of the table on this machine."""
    check_output(options)
    if options.repeats < 2:
        raise UsageError(f"--repeats {options.repeats}: bits are compared, so give at least 2")
    from detmode import verify as verifying
    from detmode.reports.page import plural

    try:
        device = options.device or verifying.default_device()
        outcomes = verifying.verify(device=device, family=options.family, repeats=options.repeats)
    except verifying.CannotVerifyError as error:
        raise UsageError(str(error)) from error
    failed = [failure for outcome in outcomes for failure in outcome.failures]
    columns = ("family", "dtype", "samples", "repeats", "error / ATen's", "guarantee", "verdict")
    text = rows_as_asked(options, [outcome.as_text() for outcome in outcomes], columns)
    if options.quiet and options.file != STDOUT:
        show(f"{plural(len(failed), 'failure')} in {plural(len(outcomes), 'family and dtype')}")
    if options.file is not None or not options.quiet:
        give(options, text)
    if not outcomes:
        reason = f"family {options.family!r} has no substitute with samples for this PyTorch"
        note(f"nothing to verify: {reason}")
    for outcome in outcomes if not options.quiet else ():
        for what in outcome.skipped:
            note(f"{outcome.family} {outcome.dtype}: skipped {what}")
    for failure in failed:
        print(f"detmode: {failure}", file=sys.stderr)
    if failed:
        step = "until a claim holds here, --override OP=native leaves its substitute out"
        say_next(options, step)
    return 1 if failed else 0
