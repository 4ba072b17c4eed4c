"""One launch under a schedule: every access of its programs checked, then made.

Kernels see made-up addresses, far apart and equal in every run. An access that leaves its tensor
therefore hits no other one, and is found before it is made.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from ctypes import c_uint8
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_stack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from detmode.sites.user_files import is_users
from detmode.verify.certificates.certificate import FoundError, KernelVerdict
from detmode.verify.certificates.triton.dependence import ATOMICS, Step, Touch, meeting
from detmode.verify.certificates.triton.schedules import Programs, Schedule

SPACE = 1 << 40
"""Bytes of address space for each buffer, which lies in their middle."""

WRITES = {"store", "atomic"}
VERBS = {
    "load": "loads",
    "store": "stores to",
    "atomic": "atomically updates",
    "atomic load": "atomically loads",
}

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
        self.memory, self._schedule = _GuardedMemory(grid), schedule
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
        self.programs = Programs(count, body, place, self._schedule, self.steps)
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
        for lanes in self.programs.lanes(pointers.size) if pointers.size else ():
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
    for frame, line in walk_stack(sys._getframe()):
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        # Of the kernel, or of a function of its author's that it calls.
        if is_users(file) and not module.startswith("triton."):
            return f"{Path(file).name}:{line}"
    return ""


@dataclass(frozen=True)
class _Use:
    """The latest access of one kind by a program, at the value of the program's clock."""

    program: int
    kind: str
    clock: int


@dataclass
class _Buffer:
    """The storage of a tensor argument."""

    name: str
    itemsize: int
    real: int
    bytes: NDArray[np.uint8]
    history: NDArray[np.int32]
    overwritten: NDArray[np.bool_]
    """The bytes of which the first use was a plain store."""

    def element(self, byte: int) -> str:
        """Name an element of the argument by its offset."""
        return f"element {byte // self.itemsize} of {self.name!r}"


class _GuardedMemory:
    """The tensors of a launch, with the history of each byte."""

    def __init__(self, grid: tuple[int, int, int]) -> None:
        self.grid = grid
        self.buffers: list[_Buffer] = []
        self._of_storage: dict[int, int] = {}
        self._histories: list[tuple[_Use, ...]] = [()]
        self._numbers: dict[tuple[_Use, ...], int] = {(): 0}
        self._clocks: dict[int, dict[int, int]] = {}
        self._released: dict[int, dict[int, int]] = {}

    def address(self, name: str, tensor: torch.Tensor) -> int:
        """Map a tensor's storage, once, and returns the address that the kernel sees."""
        storage = tensor.untyped_storage()
        real, size = storage.data_ptr(), storage.nbytes()
        number = self._of_storage.setdefault(real, len(self.buffers))
        if number == len(self.buffers):
            content = np.ctypeslib.as_array((c_uint8 * size).from_address(real))
            history = np.zeros(size, np.int32)
            overwritten = np.zeros(size, bool)
            self.buffers.append(
                _Buffer(name, tensor.element_size(), real, content, history, overwritten)
            )
        return self._base(number) + tensor.data_ptr() - real

    @staticmethod
    def _base(number: int) -> int:
        return number * SPACE + SPACE + SPACE // 2

    def name(self, program: int) -> str:
        """Name a program by its place in the grid."""
        return f"program {tuple(int(i) for i in np.unravel_index(program, self.grid))}"

    def _resolve(
        self, pointers: NDArray[np.uint64]
    ) -> Iterator[tuple[_Buffer, NDArray[np.int64], NDArray[np.bool_]]]:
        """Yield each buffer that pointers name, their byte offsets in it, and which they are."""
        numbers = (pointers // np.uint64(SPACE)).astype(np.int64) - 1
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            if not 0 <= number < len(self.buffers):
                raise FoundError(
                    KernelVerdict.OUT_OF_BOUNDS,
                    f"address {int(pointers[chosen][0]):#x}, which comes from no tensor among the "
                    "arguments",
                )
            offsets = pointers[chosen].astype(np.int64) - self._base(number)
            yield self.buffers[number], offsets, chosen

    def use(
        self,
        program: int,
        kind: str,
        pointers: NDArray[np.uint64],
        width: int,
        values: NDArray[Any] | None = None,
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Check one operation of a program; return the real addresses, and all made-up bytes.

        Args:
            program: its number in the grid, in row-major order.
            kind: a key of `VERBS`.
            pointers: the addresses that the kernel sees, one for each lane that is not masked.
            width: bytes of an element.
            values: those that a store writes, one for each lane.

        Raises:
            FoundError: an access is outside every buffer; or another program's access of the same
                bytes conflicts with one of these, and no atomic orders the two; or two lanes store
                different values to one address.
        """
        real = np.empty_like(pointers)
        for buffer, offsets, chosen in self._resolve(pointers):
            outside = (offsets < 0) | (offsets + width > buffer.bytes.size)
            if outside.any():
                raise FoundError(
                    KernelVerdict.OUT_OF_BOUNDS,
                    f"{self.name(program)} {VERBS[kind]} "
                    f"{buffer.element(int(offsets[outside][0]))}, "
                    f"which has {buffer.bytes.size // buffer.itemsize}",
                )
            real[chosen] = (offsets + buffer.real).astype(np.uint64)
            stored = None if values is None else values[chosen]
            unchanged = stored is not None and self._check_lanes(program, buffer, offsets, stored)
            taken = np.unique(offsets)[:, None] + np.arange(width)
            self._record(program, kind, buffer, taken.ravel(), unchanged)
        bytes_ = np.unique(pointers.astype(np.int64))[:, None] + np.arange(width)
        return real, bytes_.ravel()

    def _check_lanes(
        self, program: int, buffer: _Buffer, offsets: NDArray[np.int64], values: NDArray[Any]
    ) -> bool:
        """Compare a store's lanes with each other; true if memory has the same bits already."""
        width = values.dtype.itemsize
        bits = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)
        order = np.argsort(offsets, kind="stable")
        sorted_offsets, sorted_bits = offsets[order], bits[order]
        same_place = sorted_offsets[1:] == sorted_offsets[:-1]
        differ = (sorted_bits[1:] != sorted_bits[:-1]).any(axis=1) & same_place
        if differ.any():
            element = buffer.element(int(sorted_offsets[1:][differ][0]))
            raise FoundError(
                KernelVerdict.RACE,
                f"{self.name(program)} stores different values to {element} in one operation",
            )
        return bool((buffer.bytes[offsets[:, None] + np.arange(width)] == bits).all())

    def peek(self, pointers: NDArray[np.uint64], width: int) -> NDArray[np.uint8]:
        """Copy the bytes at addresses that were checked, a row for each."""
        copied = np.empty((pointers.size, width), np.uint8)
        for buffer, offsets, chosen in self._resolve(pointers):
            copied[chosen] = buffer.bytes[offsets[:, None] + np.arange(width)]
        return copied

    def _record(
        self, program: int, kind: str, buffer: _Buffer, taken: NDArray[np.int64], unchanged: bool
    ) -> None:
        known = self._clocks.setdefault(program, {program: 1})
        use = _Use(program, kind, known[program])
        if kind == "store":
            buffer.overwritten[taken[buffer.history[taken] == 0]] = True
        numbers, places = np.unique(buffer.history[taken], return_inverse=True)
        updated = np.empty_like(numbers)
        for place, number in enumerate(numbers):
            before = self._histories[number]
            for earlier in before:
                if (
                    earlier.program != program
                    and earlier.clock > known.get(earlier.program, 0)
                    and _conflict(earlier.kind, kind)
                    and not (unchanged and earlier.kind == "store")
                ):
                    element = buffer.element(int(taken[places == place][0]))
                    raise FoundError(
                        KernelVerdict.RACE,
                        f"{self.name(program)} {VERBS[kind]} {element}, which "
                        f"{self.name(earlier.program)} {VERBS[earlier.kind]} as well, "
                        "and nothing orders the two",
                    )
            # A store comes after all uses before it, so later ones need only be compared with it.
            remaining = () if kind == "store" and not unchanged else before
            after = (*(u for u in remaining if (u.program, u.kind) != (program, kind)), use)
            if (index := self._numbers.get(after)) is None:
                index = self._numbers[after] = len(self._histories)
                self._histories.append(after)
            updated[place] = index
        buffer.history[taken] = updated[places]

    def order(
        self,
        program: int,
        pointers: NDArray[np.uint64],
        *,
        acquires: bool,
        releases: NDArray[np.bool_],
        replaces: bool,
    ) -> None:
        """Advance the clocks by an atomic operation, of whose lanes some release.

        One that acquires takes over what was released at its addresses; one that replaces, a store,
        ends what was released there before.
        """
        known = self._clocks.setdefault(program, {program: 1})
        for pointer, release in zip(pointers.tolist(), releases.tolist()):
            if acquires:
                _join(known, self._released.get(pointer, {}))
            if replaces:
                self._released.pop(pointer, None)
            if release:
                _join(self._released.setdefault(pointer, {}), known)
        if releases.any():
            known[program] += 1


def _conflict(first: str, second: str) -> bool:
    return (first in WRITES or second in WRITES) and not (first in ATOMICS and second in ATOMICS)


def _join(clock: dict[int, int], received: Mapping[int, int]) -> None:
    for program, time in received.items():
        if time > clock.get(program, 0):
            clock[program] = time
