"""Running a program inside contexts, to whatever end it comes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial

from detmode.cli.abrupt_ends import before_abrupt_ends
from detmode.cli.commands import UsageError
from detmode.cli.program import AbruptEnd, Program
from detmode.cli.streams import flush, say

Tell = Callable[[BaseException | None], object]
"""Reports on a program; called with the error with which it has ended."""


def execute(
    program: Program, contexts: Sequence[AbstractContextManager[object]], tell: Tell
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


def _end(stack: ExitStack, tell: Tell, error: AbruptEnd) -> None:
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
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        flush()
        os.dup2(kept, 1)
        os.close(kept)
