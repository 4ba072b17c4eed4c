"""Running a program twice, and saying whether the two runs have the same bits."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from detmode.cli.output import as_asked, show
from detmode.cli.streams import flush, say
from detmode.cli.usage import UsageError

_KNOWN = {
    *("--twice", "--simulate", "--schedule-seed", "--cuda-on-cpu"),
    *("--warn-only", "--strict", "--no-substitute", "--override"),
}
"""Options that may stand beside ``--twice``: a recording takes them, too."""


def run_twice(options: argparse.Namespace) -> int:
    """Record a program twice under the mode, and print where the runs diverge.

    The second run's output is not shown. Recordings that diverge stay, for a closer look.

    Returns:
        0 if the runs are identical, 1 if not; where the program fails, its own exit code.

    Raises:
        UsageError: another option of ``run`` is given, or the program comes from standard input.
    """
    words: list[str] = options.arguments[: len(options.arguments) - len(options.program)]
    others = [
        word for word in words if word.startswith("--") and word.partition("=")[0] not in _KNOWN
    ]
    if others:
        raise UsageError(f"--twice compares two recordings, to which {others[0]} does not belong")
    if options.program[0] == "-" and not options.is_code:
        raise UsageError("--twice runs a program twice: give a file in place of standard input")
    folder = Path(tempfile.mkdtemp(prefix="detmode-twice-"))
    runs = [folder / "first", folder / "second"]
    for number, run in enumerate(runs, start=1):
        status = _recorded(options, run, number)
        if status:
            say(f"detmode: run {number} of 2 ended with exit code {status}; nothing is compared")
            shutil.rmtree(folder, ignore_errors=True)
            return status
    return _compared(options, folder, runs)


def _compared(options: argparse.Namespace, folder: Path, runs: Sequence[Path]) -> int:
    from detmode.runs.ranks import diff

    comparison = diff(*runs)
    # What is to be done next is of use only where they diverge, and the recordings stay.
    options.quiet = comparison.identical
    show(as_asked(options, comparison, sys.stdout))
    if comparison.identical:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        say(f"detmode: the recordings are in {folder}")
    return 0 if comparison.identical else 1


def _recorded(options: argparse.Namespace, run: Path, number: int) -> int:
    """Record one of the runs; return the program's exit code."""
    flush()
    kind = ["-m"] if options.is_module else ["-c"] if options.is_code else []
    words = [*_policy(options), *_simulation(options, number)]
    program: Sequence[str] = [*words, *kind, *options.program]
    command = [sys.executable, "-m", "detmode", "record", "--deterministic", "--quiet"]
    output = None if number == 1 else subprocess.DEVNULL
    return subprocess.call([*command, "-o", str(run), *program], stdout=output)


def _policy(options: argparse.Namespace) -> list[str]:
    flags = ("warn_only", "strict", "no_substitute")
    words = [f"--{name.replace('_', '-')}" for name in flags if getattr(options, name)]
    return words + [f"--override={op}={action}" for op, action in options.override]


def _simulation(options: argparse.Namespace, number: int) -> list[str]:
    """Return the options of a run on the host, where each run has another order of threads."""
    words = ["--cuda-on-cpu"] if options.cuda_on_cpu else []
    if options.simulate is None:
        return words
    seed = options.schedule_seed
    return [*words, "--simulate", options.simulate, "--schedule-seed", str((seed or 0) + number)]
