"""The way to a program: options are checked, and variables set that Python reads first."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from detmode.cli.launchers import under_detmode
from detmode.cli.locks import ENVIRONMENT
from detmode.cli.output import check_output
from detmode.cli.program import Program, exit_status
from detmode.cli.streams import flush
from detmode.cli.usage import UsageError, usage_errors


def prepared(options: argparse.Namespace) -> Program:
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
    target, *arguments = options.program[options.program[:1] == ["--"] :]
    _start_over(options, target, arguments)
    try:
        return Program(target, arguments, is_module=options.is_module, is_code=options.is_code)
    except OSError as error:
        raise UsageError(f"cannot open {target!r}: {error.strerror}") from error
    except ImportError as error:
        raise UsageError(f"cannot run {target!r}: {error}") from error
    except (SyntaxError, ValueError) as error:
        error.__traceback__ = None
        raise SystemExit(exit_status(error)) from None


def _start_over(options: argparse.Namespace, target: str, program: list[str]) -> None:
    """Start this process over, once, if something must be set before Python starts.

    So is a launcher, which then has detmode in each rank.
    """
    # What is recorded or probed without the mode runs as it would by itself.
    has_mode = getattr(options, "deterministic", True) or options.simulate
    missing = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    missing = missing if has_mode else {}
    arguments: list[str] = options.arguments
    ours = arguments[: len(arguments) - len(options.program)]
    again: list[str] | None = None
    if not options.is_code:
        ours = [word for word in ours if word != "-m"]  # it was about the launcher
        with usage_errors(ValueError):
            again = under_detmode(target, program, ours, is_module=options.is_module)
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
