"""Ends of a program at which Python runs nothing more: ``os._exit``, and ``os.exec*``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from detmode.cli.program import AbruptEnd
from detmode.reports.page import shortened

_EXEC = ("execv", "execve")
"""The functions of ``os`` that all others of the kind call."""


@contextmanager
def before_abrupt_ends(act: Callable[[AbruptEnd], None]) -> Iterator[None]:
    """Act before the program ends in the block without a word, or becomes another program.

    Forked children do so all the time, and are left alone.
    """
    process = os.getpid()
    plain: dict[str, Callable[..., Any]] = {
        name: getattr(os, name) for name in ("_exit", *_EXEC) if hasattr(os, name)
    }

    def end(code: int = 0, failure: str | None = None) -> None:
        if os.getpid() == process:
            error = AbruptEnd(code)
            error.failure = failure
            act(error)

    def _exit(status: int) -> NoReturn:
        end(status, f"os._exit({status}){_caller()}" if status else None)
        plain["_exit"](status)
        raise SystemExit(status)

    def becoming(name: str) -> Callable[..., None]:
        def become(path: Any, *rest: Any) -> None:
            # os.execvp tries one folder after the other.
            if os.access(path, os.X_OK) and os.path.isfile(path):
                end(0, f"os.{name}{_caller()}, after which detmode does not follow the program")
            plain[name](path, *rest)

        return become

    ours = {"_exit": _exit, **{name: becoming(name) for name in _EXEC if name in plain}}
    for name, function in ours.items():
        setattr(os, name, function)
    try:
        yield
    finally:
        for name, function in ours.items():
            if getattr(os, name) is function:
                setattr(os, name, plain[name])


def _caller() -> str:
    """Return the line of the program that ends it, as `` at file:line``; empty if it has none."""
    from detmode.sites.files import is_own

    frame = sys._getframe(2)
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            return f" at {shortened(f'{frame.f_code.co_filename}:{frame.f_lineno}')}"
        frame = frame.f_back
    return ""
