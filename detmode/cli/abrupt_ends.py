"""Ends of a program at which Python runs nothing more: ``os._exit``, and ``os.exec*``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from detmode.process.patched import Patched
from detmode.process.undo import Undo
from detmode.reports.failure import AbruptEnd
from detmode.reports.page import shortened

_EXEC = ("execv", "execve")
"""The functions of ``os`` that all others of the kind call."""


@contextmanager
def before_abrupt_ends(act: Callable[[AbruptEnd], None]) -> Iterator[None]:
    """Act before the program ends in the block without a word, or becomes another program.

    Forked children do so all the time, and are left alone.
    """
    process = os.getpid()

    def end(code: int, failure: str | None) -> None:
        if os.getpid() == process:
            error = AbruptEnd(code)
            error.failure = failure
            act(error)

    def exiting(plain: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
        def _exit(status: int) -> NoReturn:
            end(status, f"os._exit({status}){_caller()}" if status else None)
            plain(status)

        return _exit

    def becoming(plain: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def become(path: Any, *rest: Any) -> NoReturn:
            # os.execvp tries one folder after the other.
            if isinstance(path, int) or (os.access(path, os.X_OK) and os.path.isfile(path)):
                name = f"os.{plain.__name__}{_caller()}"
                end(0, f"{name}, after which detmode does not follow the program")
            plain(path, *rest)

        return become

    makers = {"_exit": exiting, **dict.fromkeys(_EXEC, becoming)}
    undo = Undo()
    try:
        for name, make in makers.items():
            Patched(lambda: os, name, make).until(undo)
        yield
    finally:
        undo.run()


def _caller() -> str:
    """Return the line of the program that ends it, as `` at file:line``; empty if it has none."""
    from detmode.sites.user_files import is_own

    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            return f" at {shortened(f'{frame.f_code.co_filename}:{frame.f_lineno}')}"
        frame = frame.f_back
    return ""
