"""The commands that run no program: ``diff``, ``rules``, ``doctor`` and ``verify``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from detmode.cli.commands import UsageError
from detmode.cli.commands.output import check_files, print_rows, show, stdout_is_taken, write_files

if TYPE_CHECKING:
    from detmode.table.rule import Rule


def diff(options: argparse.Namespace, arguments: list[str]) -> int:
    """Say where two recorded runs diverge."""
    check_files(options)
    from detmode.runs.ranks import diff as compare
    from detmode.runs.trace_file import TraceError

    try:
        comparison = compare(options.first, options.second)
    except TraceError as error:
        raise UsageError(str(error)) from error
    write_files(options, comparison)
    if not stdout_is_taken(options):
        show(comparison.to_json() if options.format == "json" else str(comparison))
    return 0 if comparison.identical else 1


def rules(options: argparse.Namespace, arguments: list[str]) -> int:
    """Print the rule table."""
    from detmode.environment.versions import SUPPORTED, VERSIONS, parse_version
    from detmode.mode.options import is_glob
    from detmode.rules import default_rules
    from detmode.table.names import near

    table = default_rules()
    found = [row for row in table if options.op is None or _means(row.rule, options.op)]
    if not found:
        known = {row.rule.op.partition(".")[0] for row in table}
        hint = "" if is_glob(options.op) else near(options.op, known)
        raise UsageError(f"--op: no rule for {options.op!r}{hint}")
    if options.torch is not None:
        try:
            version = parse_version(options.torch)
        except ValueError as error:
            raise UsageError(f"--torch: {error}") from error
        if not SUPPORTED[0] <= version <= SUPPORTED[1]:
            raise UsageError(f"--torch {options.torch}: the rule table is for PyTorch {VERSIONS}")
        found = [row for row in found if row.rule.holds_for(version)]
    rows = [{"family": row.family, **row.rule.as_text()} for row in found]
    columns = ("op", "when", "action", "guarantee", "alert", "versions", "family")
    widths = (None, 50, None, None, 50, None, None)
    more = ("because", "certificate")
    print_rows(rows, options.format, columns, widths, more=more, long=options.long)
    return 0


def _means(rule: Rule, pattern: str) -> bool:
    """Return whether ``pattern`` names a rule's operator, with or without namespace and overload.

    Users who have PyTorch's message have the name in it.
    """
    bare = rule.op.partition("::")[2]
    alerts = rule.alert if isinstance(rule.alert, tuple) else (rule.alert,)
    names = (rule.op, bare, rule.op.partition(".")[0], bare.partition(".")[0], *alerts)
    return any(fnmatchcase(name, pattern) for name in names if name)


def doctor(options: argparse.Namespace, arguments: list[str]) -> int:
    """Print the settings that can break or slow reproducibility here."""
    from detmode.environment.doctor import SEVERITIES, findings
    from detmode.reports.page import plural

    rows = [finding.as_text() for finding in findings()]
    counts = Counter(row["severity"] for row in rows)
    if options.format == "table":
        found = [plural(counts[each], each) for each in SEVERITIES if counts[each]]
        print(f"{', '.join(found)}\n")
    columns = ("subject", "severity", "state", "effect", "remedy")
    print_rows(rows, options.format, columns, widths=(None, None, 40, 50, 50))
    return 1 if counts["error"] else 0


def verify(options: argparse.Namespace, arguments: list[str]) -> int:
    """Check every claim of the table on this machine."""
    if options.repeats < 2:
        raise UsageError(f"--repeats {options.repeats}: bits are compared, so give at least 2")
    from detmode import verify as verifying

    try:
        device = options.device or verifying.default_device()
        outcomes = verifying.verify(device=device, family=options.family, repeats=options.repeats)
    except verifying.CannotVerifyError as error:
        raise UsageError(str(error)) from error
    if not outcomes:
        reason = f"family {options.family!r} has no substitute with samples for this PyTorch"
        print(f"detmode: note: nothing to verify: {reason}", file=sys.stderr)
    columns = ("family", "dtype", "samples", "repeats", "error / ATen's", "guarantee", "verdict")
    print_rows([outcome.as_text() for outcome in outcomes], options.format, columns)
    for outcome in outcomes:
        for what in outcome.skipped:
            print(
                f"detmode: note: {outcome.family} {outcome.dtype}: skipped {what}", file=sys.stderr
            )
    failed = [failure for outcome in outcomes for failure in outcome.failures]
    for failure in failed:
        print(f"detmode: {failure}", file=sys.stderr)
    return 1 if failed else 0
