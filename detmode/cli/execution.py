"""Running a program inside contexts, to whatever end it comes."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial

from detmode.cli.abrupt_ends import before_abrupt_ends
from detmode.cli.output import note
from detmode.cli.program import Program, die_of, exit_status, lacks_cuda
from detmode.cli.streams import flush, say
from detmode.cli.usage import UsageError
from detmode.reports.failure import AbruptEnd

Tell = Callable[[BaseException | None], object]
"""Reports on a program; called with the error with which it has ended."""


LAST_WORDS = 2.0
"""Seconds for which a process that fails, or was told to end, waits for others."""


def run_to_end(
    options: argparse.Namespace,
    program: Program,
    contexts: Sequence[AbstractContextManager[object]],
    tell: Tell,
    check: Callable[[int], int] = int,
) -> int:
    """Run a program in contexts, tell what was seen, and end as the program did.

    Args:
        options: of the command.
        program: the program.
        contexts: entered in their order.
        tell: called once the contexts have ended, or before the program ends the process itself.
        check: makes the command's exit code of the program's.

    Returns:
        The exit code.

    Raises:
        UsageError: a context raised it.
    """
    told: list[BaseException] = []

    def tell_early(error: AbruptEnd) -> None:
        told.append(error)
        tell(error)

    failure = _execute(program, contexts, tell_early)
    if isinstance(failure, UsageError):
        raise failure
    status = exit_status(failure)
    if failure is not None and lacks_cuda(failure) and not options.cuda_on_cpu:
        is_simulated = getattr(options, "simulate", "cuda") is not None
        note(
            "the program asks for a GPU, and PyTorch sees none here: "
            f"{'' if is_simulated else '--simulate cuda '}--cuda-on-cpu runs it on the CPU"
        )
    if not told:  # else another program was to follow, and could not be executed
        tell(failure)
    status = check(status)
    if isinstance(failure, KeyboardInterrupt):
        _interrupt_children()
        die_of(signal.SIGINT)
    return status


def _interrupt_children() -> None:
    import multiprocessing

    children = multiprocessing.active_children()
    for process in children:
        process.terminate()
    for process in children:
        process.join(LAST_WORDS)


def _execute(
    program: Program,
    contexts: Sequence[AbstractContextManager[object]],
    tell: Callable[[AbruptEnd], object],
) -> BaseException | None:
    """Run a program in contexts; return what Python itself would meet at the top of it.

    Args:
        program: the program.
        contexts: entered in their order.
        tell: called here only if the program ends the process itself, for which it is too late
            afterwards.
    """
    failure: BaseException | None = None
    try:
        # Before the contexts: a recording says with which arguments its program was started.
        program.become_main()
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            stack.enter_context(before_abrupt_ends(partial(_end, stack, tell)))
            program.run()
    except BaseException as error:
        failure = error
    flush()
    return failure


def _end(stack: ExitStack, tell: Callable[[AbruptEnd], object], error: AbruptEnd) -> None:
    flush()
    if threading.current_thread() is threading.main_thread():  # which has entered the contexts
        with suppress(Exception):
            stack.__exit__(type(error), error, None) if error.failure else stack.close()
    try:
        tell(error)
    except UsageError as wrong:
        say(f"detmode: error: {wrong}")
    flush()


@contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """Send a program's output to stderr, so that stdout holds only the report."""
    if sys.stdout is None or sys.stderr is None:  # one was closed, and its number is another file's
        yield
        return
    flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        flush()
        os.dup2(stdout, 1)
        os.close(stdout)
