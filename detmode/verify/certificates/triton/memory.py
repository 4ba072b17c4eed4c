"""The memory of one launch: whose bytes a pointer names, who used them, and what orders the uses.

Kernels see made-up addresses, far apart and equal in every run. An access that leaves its tensor
therefore hits no other one, and is found before it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ctypes import c_uint8
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from detmode.verify.certificates.certificate import FoundError, KernelVerdict

SPACE = 1 << 40
"""Bytes of address space for each buffer, which lies in their middle."""

WRITES = {"store", "atomic"}
ATOMICS = {"atomic", "atomic load"}
VERBS = {
    "load": "loads",
    "store": "stores to",
    "atomic": "atomically updates",
    "atomic load": "atomically loads",
}


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


@dataclass
class Touch:
    """The bytes that one operation used; ``result`` is the handle of what an atomic returned."""

    kind: str
    operation: str
    addresses: NDArray[np.int64]
    width: int
    lanes: int
    result: Any = None

    @property
    def commutes(self) -> bool:
        """Is integer arithmetic whose result nothing reads, so that its order cannot matter."""
        return self.operation in COMMUTING and not getattr(self.result, "was_read", True)

    @property
    def is_atomic(self) -> bool:
        """True for an atomic operation, also one among the threads of a program alone."""
        return self.kind in ATOMICS or self.operation not in ("LOAD", "STORE")

    @property
    def lanes_meet(self) -> bool:
        """True if several lanes of an atomic have one address, and their order can matter."""
        meet = self.lanes * self.width > self.addresses.size
        return meet and self.kind == "atomic" and not self.commutes


COMMUTING = {"ADD", "AND", "OR", "XOR", "MAX", "MIN", "UMAX", "UMIN"}


@dataclass
class GuardedMemory:
    """The tensors of a launch, with the history of each byte."""

    grid: tuple[int, int, int]
    buffers: list[_Buffer] = field(default_factory=list)

    def __post_init__(self) -> None:
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
        """Check one operation of a program, whose pointers are those of its unmasked lanes.

        Args:
            program: its number in the grid, in row-major order.
            kind: a key of `VERBS`.
            pointers: the addresses that the kernel sees, one for each lane.
            width: bytes of an element.
            values: those that a store writes, one for each lane.

        Returns:
            The real addresses, and all bytes of the made-up ones.

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
        """Advance the clocks by an atomic operation.

        Args:
            program: its number.
            pointers: the address of each lane.
            acquires: whether the operation acquires what was released at its addresses.
            releases: the lanes that release what the program did before.
            replaces: whether the operation is a store, which ends what was released there before.
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
