"""The command ``run``."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from detmode.cli import options as option
from detmode.cli.execution import LAST_WORDS, run_to_end
from detmode.cli.locks import read_lock, write_lock
from detmode.cli.modes import mode_of, note_not_watched, on_cpu, policy
from detmode.cli.output import as_asked, note, rename_files, write_files
from detmode.cli.preparation import prepared
from detmode.cli.streams import say
from detmode.cli.termination import when_terminated
from detmode.cli.twice import run_twice
from detmode.cli.usage import UsageError
from detmode.process.rank import rank_of
from detmode.reports.failure import AbruptEnd, failure_of
from detmode.reports.page import plural, shortened

if TYPE_CHECKING:
    from detmode.distributed.one_report import OneReport
    from detmode.environment.known import Choice
    from detmode.environment.lock.drift import Drift
    from detmode.mode.deterministic_mode import DeterministicMode
    from detmode.reports.report import Report

ABOUT = "run an unchanged script or module under the mode"
EXAMPLES = (
    "--twice train.py",
    "train.py --epochs 3",
    "--warn-only -o report.html train.py",
    "--override aten::histc=allow -m my_package.train",
)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option.program(parser)
    about = "record the program twice, and say whether the runs are identical or where they diverge"
    option.flag(parser, "--twice", about)
    _add_mode(parser.add_argument_group("the mode"))
    _add_lock(parser.add_argument_group("the lock"))
    option.report(parser, "report", "html", "sarif")


def _add_mode(group: option.Place) -> None:
    option.policy(group)
    group.add_argument(
        "--intercept",
        choices=["all", "listed"],
        default="all",
        help="all calls of the program's thread (default), or those of listed operators in any "
        "thread, at no cost to others",
    )
    group.add_argument(
        "--recheck",
        type=float,
        default=0.0,
        metavar="RATE",
        help="make this share of the calls twice, from 0 to 1, and fail where the bits differ",
    )
    option.flag(group, "--warm", "compile and load the kernels before the program starts")
    option.simulation(group)


def _add_lock(group: option.Place) -> None:
    kind = group.add_mutually_exclusive_group()
    about = "write a lock when the program has ended: all that changes its bits"
    option.flag(kind, "--write-lock", about)
    about = "refuse what differs from the lock"
    option.flag(kind, "--locked", about, action="store_const", const="error")
    # With "=" it is an option of its own: an optional value would take the script's name.
    about = "tell what differs from the lock, and go on"
    constant = {"action": "store_const", "const": "warn", "dest": "locked"}
    option.flag(kind, "--locked=warn", about, **constant)
    about = "the lock (default: detmode.lock)"
    option.path(group, "--lock", metavar="FILE", default=Path("detmode.lock"), help=about)


def run(options: argparse.Namespace) -> int:
    """Run a program under the mode, and report what was intercepted."""
    if options.twice:
        return run_twice(options)
    if options.warm and options.no_substitute:
        raise UsageError("--warm compiles what --no-substitute never calls; leave one of them out")
    program = prepared(options)
    selected = {"intercept": options.intercept, "recheck": options.recheck}
    make_mode = partial(mode_of, options, **selected, **policy(options))
    mode = make_mode()
    lock = _RunLock(options, mode) if options.locked or options.write_lock else None
    if lock is not None and lock.refusal is not None:
        _write_refusal(options, mode.report(), lock.refusal)
        return 1
    if options.warm:
        _warm(options)
    report = _RunReport(options, mode)

    def check(status: int) -> int:
        if lock is None:
            return status
        note_not_watched("locked", report.spawned.count)
        return lock.end(status)

    contexts: list[AbstractContextManager[object]] = [report.spawned.watched(make_mode), mode]
    contexts += [on_cpu(options), *([lock.choices] if lock is not None else [])]
    with report.given_early():
        return run_to_end(options, program, contexts, report.tell, check)


def _write_refusal(options: argparse.Namespace, report: Report, refusal: str) -> None:
    """Write the files of a run that did not start, so that none of an earlier run stays."""
    rank = rank_of()
    if rank is None or rank.number == 0:
        report.head["failure"] = refusal
        write_files(options, report)


class _RunLock:
    """The lock of a run: written when the program has ended, or compared with it.

    The first of several ranks writes it, and it alone is compared in its seeds, which ranks do not
    share.

    Args:
        options: ``locked`` ("error", "warn" or nothing), ``write_lock`` and ``lock``, its file.
        mode: the mode under which the program runs.

    Raises:
        UsageError: the lock cannot be read.
    """

    def __init__(self, options: argparse.Namespace, mode: DeterministicMode) -> None:
        from detmode.environment.lock import lock_file
        from detmode.environment.lock.choices import Choices
        from detmode.environment.lock.drift import differences
        from detmode.environment.lock.here import lock_of

        self._path: Path = options.lock
        rank = rank_of()
        is_first = rank is None or rank.number == 0
        self._writes = options.write_lock and is_first
        if self._writes and not self._path.parent.is_dir():
            raise UsageError(f"--lock: there is no folder {self._path.parent}")
        self._warns = options.locked == "warn"
        locked = read_lock(self._path) if options.locked else None
        if locked is not None and not is_first:
            locked = lock_file.without(locked, "generators")
        run: dict[str, Choice] = {**mode.as_locked(), "ranks": rank.world_size if rank else 1}
        with mode:
            self._here = lock_of(run=run)
        drifts = differences(locked, self._here) if locked is not None else ()
        self.choices = Choices(locked, _say if self._warns else None)
        """To be entered while the program runs."""
        _say(*drifts)
        self.refusal: str | None = None
        """The reason why the program must not start, in a line."""
        if drifts and not self._warns:
            differ = f"{plural(len(drifts), 'choice')} not as in {shortened(str(self._path))}"
            self.refusal = f"refused: {differ}"
            say(f"detmode: {self.refusal}; --locked=warn goes on")

    def end(self, status: int) -> int:
        """Write the lock, or compare it with what the program has chosen.

        Returns:
            The exit code of the run.
        """
        if self._writes and status == 0:
            write_lock({**self._here, **self.choices.sections}, self._path)
        elif self._writes:
            note(f"no {shortened(str(self._path))}, as the program failed")
        if status:
            return status
        late = self.choices.late()
        _say(*late)
        return int(bool(self.choices.found or late) and not self._warns)


def _say(*drifts: Drift) -> None:
    for drift in drifts:
        say(f"detmode: {drift}")


class _RunReport:
    """The report of a run, which is given once: at its end, or when the process is to end.

    Args:
        options: of the command.
        mode: under which the program runs.
    """

    def __init__(self, options: argparse.Namespace, mode: DeterministicMode) -> None:
        from detmode.cli.spawned import Spawned
        from detmode.distributed.one_report import OneReport

        rank = rank_of()
        self.spawned = Spawned()
        self._options, self._mode = options, mode
        self._shared = OneReport(rank) if rank is not None and rank.world_size > 1 else None
        self._telling = threading.Lock()  # taken once
        self._may_go_on = threading.Event()

    def given_early(self) -> AbstractContextManager[None]:
        """Give the report when a launcher or a cluster stops this process in the block."""
        return when_terminated(self._tell_early)

    def tell(self, error: BaseException | None) -> None:
        """Give the report when the program has ended, with an error or without."""
        from detmode.distributed.one_report import PATIENCE

        is_abrupt = isinstance(error, AbruptEnd)
        if self._telling.acquire(blocking=not is_abrupt):
            failure = failure_of(error)
            try:
                self._give(failure, LAST_WORDS if is_abrupt or failure is not None else PATIENCE)
            finally:
                if is_abrupt:  # what it was to become may not be executable
                    self._may_go_on.set()

    def _tell_early(self) -> None:
        if self._telling.acquire(blocking=False):
            self._give("SIGTERM", LAST_WORDS)
        else:
            if self._shared is not None:
                self._shared.hurry()
            # A program that has ended takes the process with it once its report is given.
            self._may_go_on.wait()

    def _give(self, failure: str | None, patience: float) -> None:
        local, shared = self.spawned.report(self._mode.report(), patience), self._shared
        if failure is not None:
            local.head["failure"] = failure
        failed = failure is not None
        whole = shared.give(local, failed=failed, patience=patience) if shared else local
        if whole is not None:
            _show(self._options, whole, shared)
        elif shared is not None and shared.is_left_to_others:
            note(f"rank {shared.rank.number} failed; others will report. So far: {local.verdict}")


def _show(options: argparse.Namespace, report: Report, shared: OneReport | None) -> None:
    """Print the report of a run, and write the files for which its options ask."""
    if shared is not None and shared.starts_again:
        note(
            f"attempt {shared.rank.attempt} failed; the report of the next one has its rows too. "
            f"So far: {report.verdict}"
        )
    else:
        say(f"\n{as_asked(options, report, sys.stderr)}")
        if not options.quiet:
            for absence in report.absences():
                note(absence)
            about_the_device = _about_the_device(options)
            if about_the_device is not None:
                note(about_the_device)
    if shared is not None and shared.rank.node_number:
        rename_files(options, f"node{shared.rank.node_number}")
    write_files(options, report)


def _about_the_device(options: argparse.Namespace) -> str | None:
    """Return the note that a report from a machine without a GPU needs."""
    import torch

    if options.simulate or torch.cuda.is_available():
        return None
    return (
        "PyTorch sees no GPU here, and most rules are for CUDA tensors; "
        "--simulate cuda treats CPU tensors as such"
    )


def _warm(options: argparse.Namespace) -> None:
    """Make the kernels ready where this process will run them, or say why that cannot be."""
    import torch

    from detmode import cuda
    from detmode.mode.warm import warm

    device = "cpu" if options.simulate else "cuda"
    reason = cuda.unavailable(device)
    if reason is not None:
        note(f"no kernels are compiled in advance: {reason}")
        return
    # Of a node's processes each has its GPU, which the program chooses only later.
    rank = os.environ.get("LOCAL_RANK", "")
    if device == "cuda" and rank.isdecimal() and int(rank) < torch.cuda.device_count():
        device = f"cuda:{int(rank)}"
    warmed = warm(device=device)
    if not options.quiet:
        note(str(warmed))
