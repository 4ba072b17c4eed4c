"""Locks: of this environment, and of a run."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from detmode.cli.streams import say
from detmode.cli.usage import UsageError, usage_errors
from detmode.environment.nccl import EXCLUDING
from detmode.process.files import FileError
from detmode.process.rank import rank_of
from detmode.reports.page import plural, shortened

if TYPE_CHECKING:
    from detmode.environment.known import Choice
    from detmode.environment.lock.choices import Choices
    from detmode.environment.lock.drift import Drift
    from detmode.environment.lock.lock_file import Sections
    from detmode.mode.deterministic_mode import DeterministicMode

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


class RunLock:
    """The lock of a run: written when the program has ended, or compared with it.

    The first of several ranks writes it, and it alone is compared in its seeds, which ranks do not
    share.

    Args:
        options: ``locked`` ("error", "warn" or nothing), ``write_lock`` and ``lock``, its file.
        mode: the mode under which the program runs.

    Raises:
        UsageError: the lock cannot be read.
    """

    def __init__(self, options: argparse.Namespace, mode: DeterministicMode) -> None:
        from detmode.environment.lock import lock_file
        from detmode.environment.lock.choices import Choices
        from detmode.environment.lock.drift import differences
        from detmode.environment.lock.here import lock_of

        self._path: Path = options.lock
        rank = rank_of()
        is_first = rank is None or rank.number == 0
        self._writes = options.write_lock and is_first
        if self._writes and not self._path.parent.is_dir():
            raise UsageError(f"--lock: there is no folder {self._path.parent}")
        self._warns = options.locked == "warn"
        locked = read_lock(self._path) if options.locked else None
        if locked is not None and not is_first:
            locked = lock_file.without(locked, "generators")
        run: dict[str, Choice] = {**mode.as_locked(), "ranks": rank.world_size if rank else 1}
        with mode:
            self._here = lock_of(run=run)
        drifts = differences(locked, self._here) if locked is not None else ()
        self.choices: Choices = Choices(locked, self._say if self._warns else None)
        """To be entered while the program runs."""
        self._say_all(drifts)
        self.refusal: str | None = None
        """The reason why the program must not start, in a line."""
        if drifts and not self._warns:
            differ = f"{plural(len(drifts), 'choice')} not as in {shortened(str(self._path))}"
            self.refusal = f"refused: {differ}"
            say(f"detmode: {self.refusal}; --locked=warn goes on")

    def end(self, status: int) -> int:
        """Write the lock, or compare it with what the program has chosen.

        Returns:
            The exit code of the run.
        """
        if self._writes and status == 0:
            write_lock({**self._here, **self.choices.sections}, self._path)
        elif self._writes:
            file = shortened(str(self._path))
            say(f"detmode: note: no {file}, as the program failed")
        if status:
            return status
        late = self.choices.late()
        self._say_all(late)
        return int(bool(self.choices.found or late) and not self._warns)

    def _say_all(self, drifts: Iterable[Drift]) -> None:
        for drift in drifts:
            self._say(drift)

    def _say(self, drift: Drift) -> None:
        say(f"detmode: {drift}")
