"""Errors with which a program, or a block of a mode, ends."""

from __future__ import annotations

import traceback
from types import TracebackType

from detmode.reports.page import shortened
from detmode.sites.source_lines import place_in


class AbruptEnd(SystemExit):
    """The end of a program that no ``with`` statement of it survives.

    Attributes:
        failure: the way in which it failed, or ``None``.
    """

    failure: str | None = None


def failure_of(error: BaseException | None) -> str | None:
    """Return how a program or a block has failed, in a line; ``None`` if it has not.

    Args:
        error: with which it ended.
    """
    if error is None or isinstance(error, GeneratorExit):
        return None
    if isinstance(error, AbruptEnd):
        return error.failure
    if isinstance(error, SystemExit):
        if error.code is None or error.code == 0:
            return None
        return f"exit code {error.code & 0xFF if isinstance(error.code, int) else 1}"
    return f"{type(error).__name__}{where(error.__traceback__)}"


def where(traced: TracebackType | None) -> str:
    """Return the program's innermost line, as `` at file:line``; empty if it has none."""
    from detmode.sites.user_files import is_own  # needs PyTorch, and `detmode --help` does not

    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(traced)]
    places = [place_in(file, line) for file, line in lines if is_own(file)]
    return f" at {shortened(places[-1])}" if places else ""
