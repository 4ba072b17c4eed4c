"""The command ``probe``."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager
from dataclasses import replace

from detmode.cli import options as option
from detmode.cli.execution import run_to_end
from detmode.cli.modes import counted, modes, not_watched, on_cpu
from detmode.cli.output import as_asked, heading_of_rank, write_files
from detmode.cli.preparation import prepared
from detmode.cli.streams import say
from detmode.cli.usage import UsageError, usage_errors
from detmode.reports.failure import failure_of

ABOUT = "run a script, each operator several times, and list those that vary"
EXAMPLES = ("train.py", "--repeats 10 --skip 'torchvision::*' train.py")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option.program(parser)
    option.observed_mode(parser)
    group = parser.add_argument_group("the probe")
    option.number(group, "--repeats", "repeats of each call (default: 3)", default=3)
    option.several(group, "--skip", "OP", "leave out an operator, or a glob; repeatable")
    option.report(parser, "report", "html", "sarif")


def run(options: argparse.Namespace) -> int:
    """Run a program, each of its operators several times, and report what varied."""
    if options.repeats < 1:
        raise UsageError(f"--repeats {options.repeats}: a call is compared with at least 1 repeat")
    program = prepared(options)
    from detmode.runs.probing import Probe

    observed = modes(options)
    with usage_errors(TypeError, ValueError):
        probing = Probe(options.repeats, skip=options.skip)

    def tell(error: BaseException | None) -> None:
        report = replace(probing.report(), failure=failure_of(error))
        say(f"\n{heading_of_rank(options)}{as_asked(options, report, sys.stderr)}")
        write_files(options, report)

    # Outside the mode: a substituted call is probed as a whole, and counted once.
    contexts: list[AbstractContextManager[object]] = [not_watched("probed"), probing, *observed]
    contexts += [counted("probing", probing), on_cpu(options)]
    status = run_to_end(options, program, contexts, tell)
    return status or int(probing.report().varied)
