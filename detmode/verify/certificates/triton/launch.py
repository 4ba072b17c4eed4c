"""One launch under a schedule: every access of its programs checked, then made."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detmode.sites.user_files import is_users
from detmode.verify.certificates.triton.dependence import meeting
from detmode.verify.certificates.triton.memory import GuardedMemory, Touch
from detmode.verify.certificates.triton.schedules import Programs, Schedule, Step

Perform = Callable[[NDArray[np.uint64], NDArray[np.intp]], Any]
"""Make an access, given the real addresses of some lanes and their numbers; returns an array."""


class InterpretedLaunch:
    """The memory and the programs of a launch, and what the interpreter asks of them.

    Args:
        function: the kernel's Python function.
        grid: its programs.
        schedule: their order.
        timeout: the seconds that they may take.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        grid: tuple[int, int, int],
        schedule: Schedule,
        timeout: float,
    ) -> None:
        self.timeout = timeout
        self.function, self.name, self.grid = function, function.__name__, grid
        self.memory, self.schedule = GuardedMemory(grid), schedule
        self.steps: list[Step] = []
        self.left: list[bytes] = []
        """The content of each buffer after the launch."""
        self.float_adds: dict[str, None] = {}
        """The lines at which atomics add floats."""

    def run(self, body: Callable[[], object], enter: Callable[[tuple[int, ...]], None]) -> None:
        """Run ``body`` once for each program; ``enter`` is called with the place of each."""

        def place(program: int) -> None:
            enter(tuple(int(i) for i in np.unravel_index(program, self.grid)))

        count = int(np.prod(self.grid))
        self.programs = Programs(count, body, place, self.schedule, self.steps)
        self.programs.run(self.timeout)
        self.left = [buffer.bytes.tobytes() for buffer in self.memory.buffers]

    @property
    def touches(self) -> list[Touch]:
        """The operations of all programs."""
        return [touch for step in self.steps for touch in step.touches]

    @functools.cached_property
    def conflicts(self) -> set[int]:
        """After the run: the programs whose order can matter, or lanes' order within them."""
        meet = {s.program for s in self.steps if any(touch.lanes_meet for touch in s.touches)}
        return meet | meeting(self.steps)

    def load(self, pointers: NDArray[np.uint64], width: int, perform: Perform) -> NDArray[Any]:
        """Make a plain load of all lanes."""
        if weary := self.programs.weary:
            self.programs.switch()
        real, touch = self._use("load", "LOAD", pointers, width)
        loaded: NDArray[Any] = perform(real, np.arange(pointers.size))
        if weary:
            self.programs.polled(touch, loaded.tobytes())
        return loaded

    def store(self, pointers: NDArray[np.uint64], values: NDArray[Any], perform: Perform) -> None:
        """Make a plain store of all lanes."""
        real, touch = self._use("store", "STORE", pointers, values.dtype.itemsize, values)
        perform(real, np.arange(pointers.size))
        self.programs.changed(touch)

    def atomic(
        self,
        operation: str,
        pointers: NDArray[np.uint64],
        width: int,
        order: str,
        perform: Perform,
        finish: Callable[[NDArray[Any]], Any],
    ) -> Any:
        """Make an atomic operation, whose lanes run as the schedule says.

        Args:
            operation: ``"LOAD"``, ``"STORE"``, ``"CAS"``, or the name of what reads, modifies and
                writes.
            pointers: one address for each lane.
            width: bytes of an element.
            order: ``"RELAXED"``, ``"ACQUIRE"``, ``"RELEASE"`` or ``"ACQUIRE_RELEASE"``;
                ``"PROGRAM"`` where it is atomic only among the threads of its program.
            perform: makes the access for some lanes; returns what it returns for them.
            finish: makes the handle of all lanes' results, which is returned.
        """
        if operation == "FADD":
            self.float_adds[_line()] = None
        kind = "atomic load" if operation == "LOAD" else "atomic"
        if order == "PROGRAM":
            kind = "load" if operation == "LOAD" else "store"
        results: NDArray[Any] = np.zeros(0)
        touches = []
        for lanes in self.schedule.lanes(pointers.size) if pointers.size else ():
            self.programs.switch()
            chosen, program = pointers[lanes], self.programs.current
            real, touch = self._use(kind, operation, chosen, width)
            before = self.memory.peek(chosen, width)
            got = perform(real, lanes)
            changed = (self.memory.peek(chosen, width) != before).any(axis=1)
            if changed.any():
                self.programs.changed(touch)
            else:
                self.programs.polled(touch, got.tobytes())
            results = results if results.size else np.zeros(pointers.size, got.dtype)
            results[lanes] = got
            touches.append(touch)
            releases = changed if operation == "CAS" else np.ones_like(changed)
            self.memory.order(
                program,
                chosen,
                acquires="ACQUIRE" in order,
                releases=releases & ("RELEASE" in order),
                replaces=operation == "STORE",
            )
        handle = finish(results)
        for touch in touches:
            touch.result = handle
        return handle

    def _use(
        self,
        kind: str,
        operation: str,
        pointers: NDArray[np.uint64],
        width: int,
        values: NDArray[Any] | None = None,
    ) -> tuple[NDArray[np.uint64], Touch]:
        real, addresses = self.memory.use(self.programs.current, kind, pointers, width, values)
        touch = Touch(kind, operation, addresses, width, pointers.size)
        self.programs.access(touch)
        return real, touch


def _line() -> str:
    """Return the line of the kernel that runs, as "file:line"."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not _is_kernels(frame):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_kernels(frame: FrameType) -> bool:
    """Return whether a frame is of the kernel, or of a function of its author's that it calls."""
    module = str(frame.f_globals.get("__name__"))
    return is_users(frame.f_code.co_filename) and not module.startswith("triton.")
