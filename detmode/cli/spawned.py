"""Ranks that a program starts by ``torch.multiprocessing``: they enter the mode, and leave rows."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.multiprocessing

from detmode.cli.streams import say
from detmode.cli.termination import when_terminated
from detmode.distributed.one_report import DIED, Folder
from detmode.process.patched import Patched
from detmode.reports.report import Report
from detmode.reports.union import of_ranks

if TYPE_CHECKING:
    from detmode.mode.deterministic_mode import DeterministicMode


def _run_under_mode(
    function: Callable[..., Any],
    make_mode: Callable[[], DeterministicMode],
    path: Path,
    number: int,
    *arguments: Any,
) -> Any:
    """Run the function of a started process under a mode, whose rows it leaves in a folder.

    Args:
        function: called with the number of the process and further arguments.
        make_mode: makes the mode; it is pickled.
        path: of the folder of all processes that are started together.
        number: of the process.
        arguments: the further ones.
    """
    name, folder, mode = f"rank{number}", Folder(path), make_mode()
    folder.enter(name)

    def leave() -> None:
        report = mode.report().by(number)
        try:
            folder.leave(name, report, failed=False)
        except OSError:
            late = f"rank {number} ended after the report was given: {report.verdict}"
            say(f"detmode: note: {late}")

    with when_terminated(leave):
        try:
            with mode:
                return function(number, *arguments)
        finally:
            leave()


@dataclass
class _Started:
    count: int
    folder: Folder | None
    context: Any = None
    """PyTorch's, for processes that the program joins itself; of others all have ended."""

    @property
    def have_ended(self) -> bool:
        return self.context is None or not any(map(BaseProcess.is_alive, self.context.processes))


class Spawned:
    """The ranks that a program has started by ``torch.multiprocessing``."""

    def __init__(self) -> None:
        self._started: list[_Started] = []

    @property
    def count(self) -> int:
        """The number of processes."""
        return sum(started.count for started in self._started)

    @contextmanager
    def watched(self, make_mode: Callable[[], DeterministicMode] | None) -> Iterator[None]:
        """Count the processes started in the block; with ``make_mode`` they run under that mode."""
        # By name: the package has a function of the module's name.
        module = sys.modules["torch.multiprocessing.spawn"]
        starting = partial(self._starting, make_mode)
        places = [
            Patched(lambda: module, "start_processes", starting),
            Patched(lambda: torch.multiprocessing, "start_processes", starting),
        ]
        for place in places:
            place.enter(self)
        try:
            yield
        finally:
            for place in places:
                place.leave(self)

    def _starting(
        self, make_mode: Callable[[], DeterministicMode] | None, plain: Callable[..., Any]
    ) -> Callable[..., Any]:
        def start_processes(
            fn: Callable[..., Any],
            args: tuple[Any, ...] = (),
            nprocs: int = 1,
            *more: Any,
            **settings: Any,
        ) -> Any:
            started = _Started(nprocs, None)
            if make_mode is not None:
                started.folder = Folder(Path(tempfile.mkdtemp(prefix="detmode-ranks-")))
                fn = partial(_run_under_mode, fn, make_mode, started.folder.path)
            self._started.append(started)
            started.context = plain(fn, args, nprocs, *more, **settings)
            return started.context

        return start_processes

    def report(self, local: Report, patience: float) -> Report:
        """Return the report of this process, with the rows of those that it has started."""
        reports: list[Report] = []
        missing: dict[str, list[int]] = {}
        for started in self._started:
            assert started.folder is not None
            names = {f"rank{number}": number for number in range(started.count)}
            have_ended = started.have_ended
            left, absent = started.folder.gather(names, 0 if have_ended else patience)
            started.folder.remove()
            reports += [report for report, _ in left.values()]
            for name, reason in absent.items():
                missing.setdefault(DIED if have_ended else reason, []).append(names[name])
        if not self._started:
            return local
        return of_ranks(local, reports, max(s.count for s in self._started), missing)
