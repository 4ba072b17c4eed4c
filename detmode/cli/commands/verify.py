"""The command ``verify``."""

from __future__ import annotations

import argparse

from detmode.cli import options as option
from detmode.cli.output import STDOUT, check_output, give, note, rows_as_asked, say_next, show
from detmode.cli.streams import say
from detmode.cli.usage import UsageError

ABOUT = "check every claim of the table on this machine"
EXAMPLES = ("--device host --family index --repeats 3",)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    claims = parser.add_argument_group("the claims")
    about = "the GPU, or the host runner; default: a GPU if any"
    claims.add_argument("--device", choices=["cuda", "host"], help=about)
    claims.add_argument("--family", metavar="NAME", help="only this family")
    option.number(claims, "--repeats", "runs of each sample (default: 20)", default=20)
    output = parser.add_argument_group("the output")
    option.output(output, "table", "json")
    option.quiet(output)


def run(options: argparse.Namespace) -> int:
    """Check every claim of the table on this machine."""
    check_output(options)
    if options.repeats < 2:
        raise UsageError(f"--repeats {options.repeats}: bits are compared, so give at least 2")
    from detmode import verify as verifying
    from detmode.reports.page import plural

    device = options.device or verifying.default_device()
    if reason := verifying.refusal(device, options.family):
        raise UsageError(reason)
    outcomes = verifying.verify(device=device, family=options.family, repeats=options.repeats)
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
        say(f"detmode: {failure}")
    if failed:
        step = "until a claim holds here, --override OP=native leaves its substitute out"
        say_next(options, step)
    return 1 if failed else 0
