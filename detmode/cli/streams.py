"""The streams of the process, which whoever has started it may have closed."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from detmode.reports.terminal import fitted, terminal_width


def say(text: str) -> None:
    """Print a text of detmode's on stderr, as wide as the terminal.

    Nothing happens where nobody can read it: no error is worth the program's own.
    """
    write(sys.stderr, f"{fitted(text, terminal_width(sys.stderr))}\n")


def write(stream: TextIO | None, text: str) -> None:
    """Write a text to a stream, unless it is closed."""
    if stream is None:
        return
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):  # ValueError: a stream that Python has closed
        _give_up(stream)


def flush() -> None:
    """Flush stdout and stderr, as far as they are open."""
    for stream in (sys.stdout, sys.stderr):
        write(stream, "")


def _give_up(stream: TextIO) -> None:
    """Send what is left in a stream's buffer nowhere: Python would fail at its end."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (AttributeError, OSError, ValueError):
        return
