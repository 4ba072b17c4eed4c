"""One report of the ranks of a node: each leaves its rows in a folder, and one of them shows all.

Files work when the process group is destroyed, or never was made, and when ranks have died. A rank
locks a file for as long as it lives, so that nobody waits for one that is dead.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from detmode.process.files import replace_file
from detmode.process.rank import Rank
from detmode.reports.report import Report
from detmode.reports.union import of_ranks
from detmode.reports.verdict import ELSEWHERE as ELSEWHERE

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]  # without it no lock is taken

PATIENCE = 60.0
"""Seconds for which ranks that have not ended are waited for."""
_PAUSE = 0.05
_QUIET = 3.0
"""Seconds after which it is said that something is waited for."""

DIED = "ended without leaving a report"
LATE = "had not ended when this report was given"
ALONE = "give reports of their own"

Left = tuple[Report, bool]
"""Rows of a process, and whether it failed."""


class Folder:
    """A folder in which processes leave their rows, each under a name of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_urgent = False
        self._locked: dict[str, int] = {}

    def enter(self, name: str) -> None:
        """Show that the process of this name is there, until it dies.

        Raises:
            OSError: the folder cannot be made, or others may write to it.
        """
        _make_private(self.path)
        with contextlib.suppress(FileNotFoundError):
            self._rows(name).unlink()  # of an earlier run, which had the same parent and port
        if fcntl is not None:
            # Nobody sees the file before it is locked.
            hidden = self._lock(f".{name}")
            self.take(name, hidden)
            hidden.replace(self._lock(name))

    def take(self, name: str, path: Path | None = None) -> bool:
        """Hold a name for as long as this process lives; return whether nobody else does."""
        file = os.open(path or self._lock(name), os.O_RDWR | os.O_CREAT, 0o600)
        if _locks(file):
            self._locked[name] = file  # closing it would unlock it
            return True
        os.close(file)
        return False

    def release(self) -> None:
        """Give up the names that this process holds, as if it had died."""
        while self._locked:
            os.close(self._locked.popitem()[1])

    def leave(self, name: str, report: Report, *, failed: bool) -> None:
        """Leave the rows of the process of this name.

        Raises:
            OSError: the folder is gone, because the report has been given.
        """
        content = json.dumps({"failed": failed, "report": report.to_json()})
        replace_file(self._rows(name), content.encode())

    def has_died(self, name: str) -> bool:
        """Return whether the process of this name, another one, was there and no longer is."""
        try:
            with open(self._lock(name), "rb+") as file:
                return _locks(file.fileno())
        except FileNotFoundError:
            return False

    def gather(
        self, names: Collection[str], patience: float
    ) -> tuple[dict[str, Left], dict[str, str]]:
        """Wait for the rows of processes; return what they left, and why others left nothing."""
        left: dict[str, Left] = {}
        missing = dict.fromkeys(names, LATE)
        begin, said = time.monotonic(), False
        while True:
            waited = time.monotonic() - begin
            for name in tuple(missing):
                died = self.has_died(name)  # looked at first: it may leave its rows meanwhile
                if self._rows(name).exists():
                    left[name] = self._read(name)
                    del missing[name]
                elif died:
                    missing[name] = DIED
            alive = [name for name, reason in missing.items() if reason is LATE]
            if not alive or waited >= patience or self.is_urgent:
                return left, missing
            if waited > _QUIET and not said:
                said = True
                _logger.warning(
                    "waiting up to %.0f seconds for the rows of %s", patience, ", ".join(alive)
                )
            time.sleep(_PAUSE)

    def remove(self) -> None:
        """Remove the folder, at once for those who would leave something in it."""
        gone = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self.path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        self.release()  # not before: others would take it for the death of this process

    def _read(self, name: str) -> Left:
        whole = json.loads(self._rows(name).read_bytes())
        return Report.from_json(whole["report"]), whole["failed"]

    def _rows(self, name: str) -> Path:
        return self.path / f"{name}.json"

    def _lock(self, name: str) -> Path:
        return self.path / f"{name}.lock"


_logger = logging.getLogger("detmode")


def _make_private(path: Path) -> None:
    """Make a folder of this user, or check that it is one: anybody can compute its name.

    Raises:
        OSError: the folder cannot be made, or others may write to it, or have led it elsewhere.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    if os.name != "posix":
        return
    about = path.lstat()
    others = stat.S_IRWXG | stat.S_IRWXO
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & others:
        raise PermissionError(
            errno.EACCES,
            "not a folder of this user that nobody else may use; remove it, or set TMPDIR to a "
            "folder of this user",
            str(path),
        )


def _locks(file: int) -> bool:
    """Lock a file for this process alone: forked children do not inherit the lock."""
    if fcntl is None:
        return False  # those who have died are waited for, as those who are late
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class OneReport:
    """The report of the ranks of this node, which one of them gives.

    It is the first rank or, if that one has died, the next to end.

    Args:
        rank: this process.

    Attributes:
        starts_again: the launcher will start the ranks again, and the next report has all rows.
        is_left_to_others: this rank was to give the report, but fails while others still run.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.starts_again = self.is_left_to_others = False
        run = hashlib.sha256(rank.run.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._folder = Folder(Path(tempfile.gettempdir()) / f"detmode-ranks-{run}")
        self._is_alone = False
        try:
            self._folder.enter(rank.name)
        except OSError as error:
            self._is_alone = True
            _logger.warning(
                "ranks give reports of their own: %s: %s", self._folder.path, error.strerror
            )

    def give(self, report: Report, *, failed: bool, patience: float = PATIENCE) -> Report | None:
        """Leave this rank's rows; return the report of all ranks if this one is to show it.

        Args:
            report: that of this process.
            failed: the process fails, whereupon a launcher stops the other ranks.
            patience: seconds for which other ranks are waited for.
        """
        rank, folder = self.rank, self._folder
        local = report.by(rank.number)
        if not self._is_alone:
            try:
                folder.leave(rank.name, local, failed=failed)
            except OSError:
                self._is_alone = True
        if self._is_alone:
            others = [number for number in range(rank.world_size) if number != rank.number]
            return of_ranks(local, (), rank.world_size, {ALONE: others})
        first = rank.again(rank.node[0]).name
        if rank.name != first and not (folder.has_died(first) and folder.take(self._next)):
            return None
        here = {rank.again(number).name for number in rank.node} - {rank.name}
        if failed and self._are_running(here, patience):
            # The launcher stops the others once it sees this one fail: do not keep it waiting.
            # Whoever ends from now on finds nobody here, and gives the report.
            folder.release()
            if self._are_running(here, 0) or not folder.take(self._next):
                self.is_left_to_others = True
                return None
        return self._of_all(local, failed, patience)

    def hurry(self) -> None:
        """Wait for no other rank any more: this process is to end."""
        self._folder.is_urgent = True

    @property
    def _next(self) -> str:
        return f"next{self.rank.suffix}"

    def _are_running(self, names: Collection[str], patience: float) -> bool:
        return LATE in self._folder.gather(names, patience)[1].values()

    def _of_all(self, local: Report, failed: bool, patience: float) -> Report:
        rank = self.rank
        reports: list[Report] = []
        missing: dict[str, list[int]] = {}
        for attempt in range(rank.attempt, -1, -1):
            is_over = attempt < rank.attempt
            named = {rank.again(number, attempt).name: number for number in rank.node}
            named.pop(rank.name, None)
            left, absent = self._folder.gather(named, 0 if is_over else patience)
            reports += [item for item, _ in left.values()]
            if is_over:  # the ranks have started again
                for item, _ in left.values():
                    item.head.pop("failure", None)
            for name, reason in absent.items():
                why = f"{DIED} in attempt {attempt}" if is_over else reason
                missing.setdefault(why, []).append(named[name])
            if not is_over:
                failed |= DIED in missing or any(failed for _, failed in left.values())
        self.starts_again = failed and not rank.is_last_attempt
        if not self.starts_again:
            self._folder.remove()
        elsewhere = [item for item in range(rank.world_size) if item not in rank.node]
        if elsewhere:
            missing[ELSEWHERE] = elsewhere
        return of_ranks(local, reports, rank.world_size, missing)
