"""The command ``diff``."""

from __future__ import annotations

import argparse
import sys

from detmode.cli import options as option
from detmode.cli.output import as_asked, check_output, show, stdout_is_taken, write_files
from detmode.cli.usage import usage_errors

ABOUT = "find where two recorded runs diverge"
EXAMPLES = ("first second", "-o diff.html first second")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    runs = parser.add_argument_group("the runs")
    option.path(runs, "first", metavar="RUN", help="a folder that 'detmode record' wrote")
    option.path(runs, "second", metavar="RUN")
    option.report(parser, "html", "sarif")


def run(options: argparse.Namespace) -> int:
    """Say where two recorded runs diverge."""
    check_output(options)
    from detmode.runs.ranks import diff
    from detmode.runs.trace_file import TraceError

    with usage_errors(TraceError):
        comparison = diff(options.first, options.second)
    if not stdout_is_taken(options):
        show(as_asked(options, comparison, sys.stdout))
    write_files(options, comparison)
    return 0 if comparison.identical else 1
