"""The command ``record``."""

from __future__ import annotations

import argparse
import warnings
from contextlib import AbstractContextManager
from pathlib import Path

from detmode.cli import options as option
from detmode.cli.execution import run_to_end
from detmode.cli.modes import counted, modes, not_watched, on_cpu
from detmode.cli.output import STDOUT, note
from detmode.cli.preparation import prepared
from detmode.cli.streams import say
from detmode.cli.usage import UsageError, usage_errors
from detmode.process.rank import rank_of
from detmode.reports.failure import AbruptEnd, failure_of
from detmode.reports.page import plural, shortened

ABOUT = "run a script and record every call, for diff"
EXAMPLES = (
    "-o first train.py",
    "-o long --level step train.py",
    "-o again --dump aten::addmm@3 train.py",
)

_FILL = (
    "no recorded call read uninitialized memory:\n"
    "torch.utils.deterministic.fill_uninitialized_memory = False is safe for these"
)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option.program(parser)
    option.observed_mode(parser)
    group = parser.add_argument_group("the recording")
    about = "the folder to write"
    option.path(group, "-o", "--output", required=True, metavar="RUN", help=about)
    group.add_argument(
        "--level",
        choices=["call", "module", "step"],
        default="call",
        help="record each call (default), or for each step one digest a module, or those of the "
        "state that it left",
    )
    group.add_argument(
        "--steps",
        metavar="BEGIN:END",
        help="record these steps alone, counted from 0, without END; a step ends with the step() "
        "of an optimizer",
    )
    option.several(
        group,
        "--dump",
        "OPERATOR@INDEX",
        "write the tensors of that call of the operator too, e.g. aten::addmm.default@3; "
        "repeatable",
    )
    option.flag(group, "--quiet", "print only what could not be recorded")


def run(options: argparse.Namespace) -> int:
    """Run a program and record every call."""
    if options.output == STDOUT:
        raise UsageError("-o -: a recording is a folder; give its name")
    program = prepared(options)
    from detmode.runs import recording
    from detmode.runs.step_range import steps_of
    from detmode.runs.trace_file import TraceError

    path = _path_of_rank(options.output)
    observed = modes(options)
    with usage_errors(ValueError, about="--"):
        steps_of(options.steps)
    selected = {"level": options.level, "steps": options.steps}
    with usage_errors(ValueError, about="--dump "):
        recorded = recording.record(path, dump=options.dump, **selected)
    # They are said below, without a place in our code.
    warnings.filterwarnings("ignore", recording.PARTLY_READ)

    def tell(error: BaseException | None) -> None:
        if not options.quiet:
            shown = shortened(str(path))
            say(f"detmode: recorded to {shown}")
            if rank_of() is None and failure_of(error) is None:
                then = f"then `detmode diff {shown} OTHER`"
                say(f"next: the same command with -o OTHER, {then}")
                if recorded.reads_written_memory:
                    say(_FILL)
        if isinstance(error, AbruptEnd) and error.failure:
            note(f"the recording ends with {error.failure}")
        if (calls := recorded.not_recorded) is not None:
            note(f"not recorded: {calls}")
        for call, reason in recorded.not_dumped.items():
            note(f"no dump of {call}: {reason}")
        if reads := recorded.unwritten_reads:
            calls = plural(sum(reads.values()), "call")
            note(f"{calls} read uninitialized memory, and may vary: {next(iter(reads))}")

    contexts: list[AbstractContextManager[object]] = [usage_errors(TraceError)]
    contexts += [not_watched("recorded"), *observed, recorded]
    contexts += [counted("recording", recorded), on_cpu(options)]
    return run_to_end(options, program, contexts, tell)


def _path_of_rank(path: Path) -> Path:
    """Each process that a launcher starts has a folder of its own, also if it is started again."""
    rank = rank_of()
    if rank is None:
        return path
    return path / rank.name if rank.world_size > 1 else Path(f"{path}{rank.suffix}")
