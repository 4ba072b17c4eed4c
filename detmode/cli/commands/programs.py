"""The commands that run a program: ``run``, ``record``, ``probe`` and ``audit``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detmode.cli.commands import UsageError
from detmode.cli.commands.output import (
    STDOUT,
    as_asked,
    check_files,
    show,
    stdout_is_taken,
    write_files,
)
from detmode.cli.program import Program, die_of_interrupt, exit_status
from detmode.environment.nccl import EXCLUDING

if TYPE_CHECKING:
    from detmode.mode.deterministic_mode import DeterministicMode

ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NCCL_ALGO": EXCLUDING,
    "PYTHONHASHSEED": "0",
}
"""Variables to be set before Python, CUDA or NCCL starts; a value that the user set wins."""


def run(options: argparse.Namespace, arguments: list[str]) -> int:
    """Run a program under the mode, and report what was intercepted."""
    policy = _policy(options)
    if options.warm and options.no_substitute:
        raise UsageError("--warm compiles what --no-substitute never calls; leave one of them out")
    program = _prepared(options, arguments)
    mode = _mode(options, intercept=options.intercept, **policy)
    if options.warm:
        _warm(options)
    failure = _execute(program, mode)
    report = mode.report()
    note = None if options.quiet else _about_the_device(options)
    with _ended(failure) as status:
        print(f"\n{as_asked(options, report, sys.stderr)}", file=sys.stderr)
        if note is not None:
            _note(note)
        write_files(options, report)
    return status


def record(options: argparse.Namespace, arguments: list[str]) -> int:
    """Run a program and record every call."""
    if options.output == STDOUT:
        raise UsageError("-o -: a recording is a folder; give its name")
    program = _prepared(options, arguments)
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
    failure = _execute(program, *modes, recorded)
    if isinstance(failure, TraceError):
        raise UsageError(str(failure))
    with _ended(failure) as status:
        print(f"detmode: recorded to {path}", file=sys.stderr)
        for call, reason in recorded.not_dumped.items():
            _note(f"no dump of {call}: {reason}")
    return status


def _path_of_rank(path: Path) -> Path:
    """Each process of a distributed run, as ``torchrun`` starts them, has a folder of its own."""
    rank, ranks = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    several = rank.isdecimal() and ranks.isdecimal() and int(ranks) > 1
    return path / f"rank{rank}" if several else path


def probe(options: argparse.Namespace, arguments: list[str]) -> int:
    """Run a program, each of its operators several times, and report what varied."""
    if options.repeats < 1:
        raise UsageError(f"--repeats {options.repeats}: a call is compared with at least 1 repeat")
    program = _prepared(options, arguments)
    from detmode.runs.probing import Probe

    modes = _modes(options)
    with _usage_errors():
        probing = Probe(options.repeats, skip=options.skip)
    # Outside the mode: a substituted call is probed as a whole, and counted once.
    failure = _execute(program, probing, *modes)
    report = probing.report()
    with _ended(failure) as status:
        print(f"\n{report}", file=sys.stderr)
        write_files(options, report)
    return status or int(report.varied)


def audit(options: argparse.Namespace, arguments: list[str]) -> int:
    """Run a program on the CPU, and report what the mode would do on CUDA."""
    policy = _policy(options)
    program = _prepared(options, arguments)
    from detmode.audit import Audit

    with _usage_errors():
        mode = Audit(**policy)
    with _stdout_on_stderr():
        failure = _execute(program, mode)
    with _ended(failure) as status:
        report = mode.report()
        if not stdout_is_taken(options):
            show(as_asked(options, report, sys.stdout))
        write_files(options, report)
    return status or int(report.raises)


@contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Send a program's output to stderr, so that stdout holds only the report."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


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
        _note(f"no kernels are compiled in advance: {reason}")
        return
    # Of a node's processes each has its GPU, which the program chooses only later.
    rank = os.environ.get("LOCAL_RANK", "")
    if device == "cuda" and rank.isdecimal() and int(rank) < torch.cuda.device_count():
        device = f"cuda:{int(rank)}"
    warmed = warm(device=device)
    if not options.quiet:
        _note(str(warmed))


@contextmanager
def _ended(failure: BaseException | None) -> Iterator[int]:
    """Say how the program ended, and after the block end as it did; gives its exit code."""
    yield exit_status(failure)
    if isinstance(failure, KeyboardInterrupt):
        die_of_interrupt()


def _note(text: str) -> None:
    print(f"detmode: note: {text}", file=sys.stderr)


def _prepared(options: argparse.Namespace, arguments: list[str]) -> Program:
    """Check the options, set the environment, and return the program to run.

    Raises:
        SystemExit: it is not Python.
    """
    check_files(options)
    if getattr(options, "schedule_seed", None) is not None and options.simulate is None:
        raise UsageError("--schedule-seed orders the host runner; give --simulate cuda as well")
    _restart_with_environment(arguments)
    # Python itself drops a "--" before the program.
    target, *arguments = options.program[options.program[:1] == ["--"] :]
    try:
        return Program(target, arguments, is_module=options.is_module, is_code=options.is_code)
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
            _note(f"not simulating CUDA: {reason}")
            simulate = seed = None
    with _usage_errors():
        return DeterministicMode(simulate=simulate, schedule_seed=seed, **more)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn the errors of a mode's arguments into usage errors."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def _execute(program: Program, *contexts: AbstractContextManager[object]) -> BaseException | None:
    """Run a program in contexts; what Python itself would meet at the top of it."""
    failure: BaseException | None = None
    try:
        # Before the contexts: a recording says with which arguments its program was started.
        program.become_main()
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            program.run()
    except BaseException as error:
        failure = error
    if sys.stdout is not None:
        sys.stdout.flush()
    return failure


def _policy(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a mode that ``run`` and ``audit`` share."""
    overrides = {}
    for pair in options.override:
        op, equals, action = pair.rpartition("=")
        if not equals or not op or not action:
            raise UsageError(f"--override {pair!r}: give it as OP=ACTION, e.g. aten::histc=allow")
        overrides[op] = action
    return {
        "warn_only": options.warn_only,
        "strict": options.strict,
        "substitute": not options.no_substitute,
        "overrides": overrides,
    }


def _restart_with_environment(arguments: list[str]) -> None:
    """Start this process over, once, if something must be set before Python starts."""
    missing = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    if not missing:
        return
    # `python -m detmode` again if that is how it began, else the installed command.
    main_module = sys.modules["__main__"]
    again = ["-m", "detmode"] if getattr(main_module, "__spec__", None) else [sys.argv[0]]
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(
        sys.executable, [sys.executable, *flags, *again, *arguments], {**os.environ, **missing}
    )
