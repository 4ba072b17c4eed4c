"""The lock of this environment, and the files of locks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from detmode.cli.streams import say
from detmode.cli.usage import usage_errors
from detmode.environment.nccl import EXCLUDING
from detmode.process.files import FileError
from detmode.reports.page import shortened

if TYPE_CHECKING:
    from detmode.environment.lock.lock_file import Sections

ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NCCL_ALGO": EXCLUDING,
    "PYTHONHASHSEED": "0",
}
"""Variables to be set before Python, CUDA or NCCL starts; a value that the user set wins."""


def lock_here() -> Sections:
    """Return the lock of this environment, as a program finds it that ``detmode run`` starts."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from detmode.environment.lock.here import lock_of
    from detmode.mode.deterministic_mode import DeterministicMode

    with DeterministicMode() as mode:
        return lock_of(run={"rules": mode.as_locked()["rules"]})


def read_lock(path: Path) -> Sections:
    """Read a lock.

    Raises:
        UsageError: there is none, or it is no lock.
    """
    from detmode.environment.lock import lock_file

    with usage_errors(FileError):
        return lock_file.read(path)


def write_lock(lock: Sections, path: Path) -> None:
    """Write a lock, and say where it is.

    Raises:
        UsageError: it cannot be written.
    """
    from detmode.environment.lock import lock_file

    with usage_errors(FileError):
        lock_file.write(lock, path)
    say(f"detmode: locked in {shortened(str(path))}")
