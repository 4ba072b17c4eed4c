"""The command ``audit``."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager

from detmode.cli import options as option
from detmode.cli.execution import run_to_end, stdout_on_stderr
from detmode.cli.modes import not_watched, on_cpu, policy
from detmode.cli.output import as_asked, heading_of_rank, show, stdout_is_taken, write_files
from detmode.cli.preparation import prepared
from detmode.cli.usage import usage_errors
from detmode.reports.failure import failure_of

ABOUT = "run a script on the CPU and report what would happen on CUDA"
EXAMPLES = ("train.py --steps 2", "--format github train.py", "-o audit.html train.py")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option.program(parser)
    group = parser.add_argument_group("the mode")
    option.policy(group)
    option.cuda_on_cpu(group)
    option.report(parser, "html", "sarif")


def run(options: argparse.Namespace) -> int:
    """Run a program on the CPU, and report what the mode would do on CUDA."""
    program = prepared(options)
    from detmode.mode.audit import Audit
    from detmode.process.interface import COMMAND

    with usage_errors(TypeError, ValueError, told=COMMAND.in_words):
        mode = Audit(**policy(options))
    mode.start_through(COMMAND)

    def tell(error: BaseException | None) -> None:
        report, heading = mode.report(), heading_of_rank(options)
        if (failed := failure_of(error)) is not None:
            report.head["failure"] = failed
        if not stdout_is_taken(options):
            show(heading + as_asked(options, report, sys.stdout))
        write_files(options, report)

    contexts: list[AbstractContextManager[object]] = [stdout_on_stderr(), not_watched("audited")]
    contexts += [mode, on_cpu(options)]
    status = run_to_end(options, program, contexts, tell)
    return status or int(mode.report().raises)
