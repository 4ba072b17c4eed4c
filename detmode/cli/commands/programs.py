"""The commands that run a program: ``run``, ``record``, ``probe`` and ``audit``."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detmode.cli.commands import UsageError
from detmode.cli.commands.locks import ENVIRONMENT, RunLock
from detmode.cli.commands.output import (
    STDOUT,
    as_asked,
    check_output,
    form_of,
    note,
    rename_files,
    show,
    stdout_is_taken,
    write_files,
)
from detmode.cli.launchers import under_detmode
from detmode.cli.program import AbruptEnd, Program, die_of, exit_status, failure_of, lacks_cuda
from detmode.cli.streams import flush, say
from detmode.cli.termination import when_terminated
from detmode.process.rank import rank_of
from detmode.reports.page import shortened

if TYPE_CHECKING:
    from detmode.distributed.one_report import OneReport
    from detmode.mode.deterministic_mode import DeterministicMode
    from detmode.reports.report import Report
    from detmode.runs.probing import Probe
    from detmode.runs.recording import record as recording


def run(options: argparse.Namespace, arguments: list[str]) -> int:
    """Run a program under the mode, and report what was intercepted."""
    policy = _policy(options)
    if options.warm and options.no_substitute:
        raise UsageError("--warm compiles what --no-substitute never calls; leave one of them out")
    program = _prepared(options, arguments)
    make_mode = partial(
        _mode, options, intercept=options.intercept, recheck=options.recheck, **policy
    )
    mode = make_mode()
    lock = RunLock(options, mode) if options.locked or options.write_lock else None
    if lock is not None and lock.is_refused:
        return 1
    if options.warm:
        _warm(options)
    from detmode.cli.commands.spawned import Spawned
    from detmode.cli.execution import execute
    from detmode.distributed.one_report import PATIENCE, OneReport

    rank, spawned = rank_of(), Spawned()
    shared = OneReport(rank) if rank is not None and rank.world_size > 1 else None

    telling = threading.Lock()  # taken once: the report is given once

    def tell(failure: str | None, patience: float) -> None:
        report = spawned.report(mode.report(), patience)
        if failure is not None:
            report.head["failure"] = failure
        failed = failure is not None
        given = shared.give(report, failed=failed, patience=patience) if shared else report
        if given is not None:
            _show(options, given, shared)
        elif shared is not None and shared.is_left_to_others:
            note(f"rank {shared.rank.number} failed; others will report. So far: {report.verdict}")

    def tell_early() -> None:
        if telling.acquire(blocking=False):
            tell("SIGTERM", _LAST_WORDS)
        elif shared is not None:
            shared.hurry()
            telling.acquire()  # the program has ended, and so does the process with its report

    def tell_abruptly(error: BaseException | None) -> None:
        if telling.acquire(blocking=False):
            tell(failure_of(error), _LAST_WORDS)

    contexts: list[AbstractContextManager[object]] = [mode, _cuda_on_cpu(options)]
    if lock is not None:
        contexts.append(lock.choices)
    with when_terminated(tell_early) if shared is not None else nullcontext():
        with spawned.watched(make_mode):
            failure = execute(program, contexts, tell_abruptly)
        with _ended(options, failure) as status:
            telling.acquire()
            tell(failure_of(failure), _LAST_WORDS if status else PATIENCE)
            if lock is not None:
                _not_locked(spawned.count)
                status = lock.end(status)
    return status


def _not_locked(processes: int) -> None:
    if processes:
        note(
            f"not locked: {processes} processes that the program started by "
            "torch.multiprocessing; start ranks with torchrun"
        )


_LAST_WORDS = 2.0
"""Seconds for which a process that fails, or was told to end, waits for the rows of others."""


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


def record(options: argparse.Namespace, arguments: list[str]) -> int:
    """Run a program and record every call."""
    if options.output == STDOUT:
        raise UsageError("-o -: a recording is a folder; give its name")
    program = _prepared(options, arguments)
    from detmode.cli.execution import execute
    from detmode.runs import recording
    from detmode.runs.step_range import StepRange
    from detmode.runs.trace_file import TraceError

    modes = _modes(options)
    path = _path_of_rank(options.output)
    try:
        StepRange.of(options.steps)
    except ValueError as error:
        raise UsageError(f"--{error}") from error
    selected = {"level": options.level, "steps": options.steps}
    try:
        recorded = recording.record(path, dump=options.dump, **selected)
    except ValueError as error:
        raise UsageError(f"--dump {error}") from error
    warnings.filterwarnings("ignore", recording.NO_DUMP)  # said below, without a place in our code

    def tell(error: BaseException | None) -> None:
        if not options.quiet:
            shown = shortened(str(path))
            say(f"detmode: recorded to {shown}")
            if rank_of() is None and failure_of(error) is None:
                then = f"then `detmode diff {shown} OTHER`"
                say(f"next: the same command with -o OTHER, {then}")
        if isinstance(error, AbruptEnd) and error.failure:
            note(f"the recording ends with {error.failure}")
        if (calls := recorded.not_recorded) is not None:
            note(f"not recorded: {calls}")
        for call, reason in recorded.not_dumped.items():
            note(f"no dump of {call}: {reason}")

    contexts: list[AbstractContextManager[object]] = [_not_watched("recorded"), *modes, recorded]
    contexts += [_counted("recording", recorded), _cuda_on_cpu(options)]
    failure = execute(program, contexts, tell)
    if isinstance(failure, TraceError):
        raise UsageError(str(failure))
    with _ended(options, failure) as status:
        tell(failure)
    return status


def _path_of_rank(path: Path) -> Path:
    """Each process that a launcher starts has a folder of its own, also if it is started again."""
    rank = rank_of()
    if rank is None:
        return path
    return path / rank.name if rank.world_size > 1 else Path(f"{path}{rank.suffix}")


def _counted(what: str, observer: recording | Probe) -> AbstractContextManager[None]:
    """Show how many calls were observed so far; of several ranks the first one's."""
    from detmode.reports.progress import counted

    rank = rank_of()
    if rank is not None and rank.number:
        return nullcontext()
    return counted(what, lambda: observer.extent)


@contextmanager
def _not_watched(done: str) -> Iterator[None]:
    """Say at the end how many processes of the program were not ``done``, as this one was."""
    from detmode.cli.commands.spawned import Spawned

    spawned = Spawned()
    with spawned.watched(None):
        yield
    if spawned.count:
        note(
            f"not {done}: {spawned.count} processes that the program started by "
            "torch.multiprocessing; start ranks with torchrun"
        )


def _of_rank(options: argparse.Namespace) -> str:
    """Give each of several ranks files of its own; return the heading of its report."""
    rank = rank_of()
    if rank is None or rank.world_size == 1:
        return ""
    rename_files(options, rank.name)
    return f"rank {rank.number}\n" if form_of(options) == "table" else ""


def probe(options: argparse.Namespace, arguments: list[str]) -> int:
    """Run a program, each of its operators several times, and report what varied."""
    if options.repeats < 1:
        raise UsageError(f"--repeats {options.repeats}: a call is compared with at least 1 repeat")
    program = _prepared(options, arguments)
    from detmode.cli.execution import execute
    from detmode.runs.probing import Probe

    modes = _modes(options)
    with _usage_errors():
        probing = Probe(options.repeats, skip=options.skip)

    def tell(error: BaseException | None) -> None:
        report = replace(probing.report(), failure=failure_of(error))
        say(f"\n{_of_rank(options)}{as_asked(options, report, sys.stderr)}")
        write_files(options, report)

    # Outside the mode: a substituted call is probed as a whole, and counted once.
    contexts: list[AbstractContextManager[object]] = [_not_watched("probed"), probing, *modes]
    contexts += [_counted("probing", probing), _cuda_on_cpu(options)]
    failure = execute(program, contexts, tell)
    with _ended(options, failure) as status:
        tell(failure)
    return status or int(probing.report().varied)


def audit(options: argparse.Namespace, arguments: list[str]) -> int:
    """Run a program on the CPU, and report what the mode would do on CUDA."""
    policy = _policy(options)
    program = _prepared(options, arguments)
    from detmode.cli.execution import execute, stdout_on_stderr
    from detmode.mode.audit import Audit

    with _usage_errors():
        mode = Audit(**policy)

    def tell(error: BaseException | None) -> None:
        report, heading = mode.report(), _of_rank(options)
        if (failed := failure_of(error)) is not None:
            report.head["failure"] = failed
        if not stdout_is_taken(options):
            show(heading + as_asked(options, report, sys.stdout))
        write_files(options, report)

    contexts: list[AbstractContextManager[object]] = [stdout_on_stderr(), _not_watched("audited")]
    contexts += [mode, _cuda_on_cpu(options)]
    failure = execute(program, contexts, tell)
    with _ended(options, failure) as status:
        tell(failure)
    return status or int(mode.report().raises)


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


def _cuda_on_cpu(options: argparse.Namespace) -> AbstractContextManager[object]:
    from detmode.environment.cuda_on_cpu import cuda_on_cpu

    return cuda_on_cpu() if options.cuda_on_cpu else nullcontext()


@contextmanager
def _ended(options: argparse.Namespace, failure: BaseException | None) -> Iterator[int]:
    """Say how the program ended, and after the block end as it did; gives its exit code."""
    status = exit_status(failure)
    if failure is not None and lacks_cuda(failure) and not options.cuda_on_cpu:
        is_simulated = getattr(options, "simulate", "cuda") is not None
        note(
            "the program asks for a GPU, and PyTorch sees none here: "
            f"{'' if is_simulated else '--simulate cuda '}--cuda-on-cpu runs it on the CPU"
        )
    yield status
    if isinstance(failure, KeyboardInterrupt):
        import multiprocessing

        children = multiprocessing.active_children()
        for process in children:
            process.terminate()
        for process in children:
            process.join(_LAST_WORDS)
        die_of(signal.SIGINT)


def _prepared(options: argparse.Namespace, arguments: list[str]) -> Program:
    """Check the options, set the environment, and return the program to run.

    Raises:
        SystemExit: it is not Python.
    """
    check_output(options)
    if getattr(options, "schedule_seed", None) is not None and options.simulate is None:
        raise UsageError("--schedule-seed orders the host runner; give --simulate cuda as well")
    if options.cuda_on_cpu and getattr(options, "simulate", "cuda") is None:
        raise UsageError("--cuda-on-cpu runs CUDA's calls on the CPU; give --simulate cuda as well")
    # Python itself drops a "--" before the program.
    target, *given = options.program[options.program[:1] == ["--"] :]
    _start_over(options, arguments, target, given)
    try:
        return Program(target, given, is_module=options.is_module, is_code=options.is_code)
    except OSError as error:
        raise UsageError(f"cannot open {target!r}: {error.strerror}") from error
    except ImportError as error:
        raise UsageError(f"cannot run {target!r}: {error}") from error
    except (SyntaxError, ValueError) as error:
        error.__traceback__ = None
        raise SystemExit(exit_status(error)) from None


def _modes(options: argparse.Namespace) -> list[DeterministicMode]:
    return [_mode(options)] if options.deterministic or options.simulate else []


def _mode(options: argparse.Namespace, **more: Any) -> DeterministicMode:
    from detmode.mode.deterministic_mode import DeterministicMode

    simulate, seed = options.simulate, options.schedule_seed
    if simulate:
        from detmode import cuda

        reason = cuda.unavailable("cpu")
        if reason is not None:
            note(f"not simulating CUDA: {reason}")
            simulate = seed = None
    with _usage_errors():
        mode = DeterministicMode(simulate=simulate, schedule_seed=seed, **more)
    mode.acts_in_threads = True
    return mode


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn the errors of a mode's arguments into usage errors."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def _policy(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a mode that ``run`` and ``audit`` share."""
    return {
        "warn_only": options.warn_only,
        "strict": options.strict,
        "substitute": not options.no_substitute,
        "overrides": dict(options.override),
    }


def _start_over(
    options: argparse.Namespace, arguments: list[str], target: str, program: list[str]
) -> None:
    """Start this process over, once, if something must be set before Python starts.

    So is a launcher, which then has detmode in each rank.
    """
    missing = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    own = arguments[: len(arguments) - len(options.program)]
    again: list[str] | None = None
    if not options.is_code:
        own = [word for word in own if word != "-m"]  # it was about the launcher
        try:
            again = under_detmode(target, program, own, is_module=options.is_module)
        except ValueError as error:
            raise UsageError(str(error)) from error
    on_windows = sys.platform == "win32"
    if again is None:
        if not missing:
            return
        # `python -m detmode` again if that is how it began, else the installed command, which is no
        # Python file on Windows.
        as_module = on_windows or getattr(sys.modules["__main__"], "__spec__", None)
        again = [*(["-m", "detmode"] if as_module else [sys.argv[0]]), *arguments]
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing
    command, environment = [sys.executable, *flags, *again], {**os.environ, **missing}
    flush()
    if on_windows:
        # There exec ends the process that the shell waits for, and the exit code is lost.
        raise SystemExit(subprocess.call(command, env=environment))
    os.execve(sys.executable, command, environment)
