"""The host runner: CUDA kernels on the CPU, with blocks and threads in an order set by a seed.

A kernel whose result depends on the order of its threads changes its bits when the seed changes.
The runner also finds writes outside a tensor, writes into a `const` input and barriers that not
every thread of a block reaches.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import threading
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from detmode.cuda.dtypes import CTYPES
from detmode.cuda.host.library import Library, compile, default_build, load
from detmode.cuda.host.toolchain import compiler, sanitizer_environment, unavailable
from detmode.cuda.host.watch import Watch, limited
from detmode.cuda.memory import range_of
from detmode.cuda.signature import Bound, KernelSignature
from detmode.cuda.source import Source
from detmode.process.undo import Undo

__all__ = [
    "MOST_SHARED",
    "DeviceAssert",
    "LaunchError",
    "Library",
    "check_races",
    "compile",
    "compiler",
    "launch_blocks",
    "launches",
    "load",
    "sanitizer_environment",
    "schedule",
    "unavailable",
]


MOST_SHARED = 48 * 1024
"""Bytes of dynamic shared memory of a block: what every GPU has."""


DEVICE_ASSERT, OUT_OF_BOUNDS, DATA_RACE, STOPPED = 2, 3, 4, 5
"""Statuses of a launch, as in state.h."""


class LaunchError(RuntimeError):
    """A launch did something that is an error or undefined on a GPU; the outputs are unchanged."""

    status = 1
    """The number in state.h; 1 for what has none of its own."""


class DeviceAssert(LaunchError):  # noqa: N818 -- the words of PyTorch's "device-side assert"
    """A `DETMODE_ASSERT` did not hold."""


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_longlong),
        ("writable", ctypes.c_int),
        ("memory", ctypes.c_void_p),
        ("copy", ctypes.c_void_p),
    ]


class _Argument(ctypes.Structure):
    _fields_ = [
        ("value", ctypes.c_ulonglong),
        ("buffer", ctypes.c_int),
        ("offset", ctypes.c_longlong),
    ]


# What an argument is that lies in no buffer, as in state.h: a word, or a struct at its address.
_WORD, _STRUCT = -1, -2


_POSITION = re.compile(r"(?<=argument )(\d+)")
"""The position by which the headers of the runner call an argument."""


class _Schedule(threading.local):
    seed: int | None = None
    launches: int = 0
    races: bool = False


_schedule = _Schedule()


@contextlib.contextmanager
def schedule(seed: int | None) -> Iterator[None]:
    """Set the order in which the host runner runs blocks and threads, for this OS thread.

    Args:
        seed: None runs them in program order. An int shuffles them, and switches between threads
            at atomics; successive launches in the context get different shuffles, and the same seed
            gives the same shuffles again.

    Raises:
        TypeError: `seed` is neither None nor an int.
    """
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"schedule(): seed must be None or an int, but got {type(seed).__name__}")
    undo = Undo()
    try:
        choose_schedule(seed, undo)
        yield
    finally:
        undo.run()


def choose_schedule(seed: int | None, undo: Undo) -> None:
    """Set the schedule until `undo` runs."""
    restore = functools.partial(_set_schedule, _schedule.seed, _schedule.launches)
    undo.note(functools.partial(undo.run_in_thread, restore))
    _set_schedule(seed, 0)


def _set_schedule(seed: int | None, launches: int) -> None:
    _schedule.seed, _schedule.launches = seed, launches


@contextlib.contextmanager
def check_races() -> Iterator[None]:
    """Make launches of this OS thread raise `LaunchError` at a data race.

    A data race is a pair of accesses to one byte by two CUDA threads, at least one of them a plain
    write or one plain and the other an atomic write, that no barrier, `__syncwarp()` or fence
    orders, whichever ran first. A read of shared memory that no thread of the block has written is
    an error too, and so is an access out of bounds. The message names both threads and, if
    binutils' addr2line is installed, both lines. Launches take thirty to ninety times as long.
    """
    saved, _schedule.races = _schedule.races, True
    try:
        yield
    finally:
        _schedule.races = saved


def launches() -> int:
    """Return the number of launches of this OS thread since the innermost `schedule` began."""
    return _schedule.launches


_CODES = dict(zip(CTYPES, "eEfdFD?BbhiqHIQ", strict=True))
"""The codes by which the runner calls the types of elements, in the order of :data:`CTYPES`."""
_POINTEES = {code: CTYPES[dtype] for dtype, code in _CODES.items()} | {"*": "void"}


def _element_fits(pointee: str, dtype: torch.dtype) -> bool:
    if pointee == "*":
        return True
    code = _CODES.get(dtype)
    # Integers of one size pass for each other: atomics want the unsigned type.
    return code is not None and (
        code == pointee or (code.lower() == pointee.lower() and pointee in "bBhHiIqQ")
    )


def launch_blocks(
    source: Source,
    entry: str,
    grid: Sequence[int],
    block: Sequence[int],
    bound: Bound,
    shared: int = 0,
    watch: Watch | None = None,
) -> None:
    """Run one launch to its end; `detmode.cuda.launch_blocks` calls it for CPU tensors.

    Raises:
        ValueError: a tensor that is not on the CPU.
        LaunchError: see the class; also a tensor of another dtype than its pointer's.
        DeviceAssert: a `DETMODE_ASSERT` did not hold.
        CompileError: the file does not compile.
    """
    signature = source.signature(entry)
    entries = source.together(entry)
    position = entries.index(entry)
    races = _schedule.races or watch is not None
    library = compile(source, "races" if races else default_build(), entries)
    numbers, tensors = bound
    pointers = bytes(8 * len(signature.pointers))
    words = (ctypes.c_ulonglong * signature.n_words).from_buffer_copy(pointers + numbers)
    arguments, regions = _packed(signature, library.kinds(position), words, tensors)
    merged = _merge(regions)
    buffers, positions = _buffers(merged)
    _point(arguments, regions, merged)
    is_shuffled, seed = _next_order()
    with contextlib.nullcontext() if watch is None else limited(watch):
        status, message = library.launch(
            position,
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*block),
            shared,
            arguments,
            len(signature.parameters),
            buffers,
            positions,
            len(merged),
            is_shuffled,
            seed,
            None if watch is None else ctypes.byref(watch),
        )
    if status:
        names = [parameter.name for parameter in signature.parameters]
        message = _POSITION.sub(lambda match: repr(names[int(match[1])]), message)
        kind = DeviceAssert if status == DEVICE_ASSERT else LaunchError
        error = kind(f"{signature.where}: {message}")
        error.status = status
        raise error


_Region: TypeAlias = tuple[int, int, bool, int]
"""Bytes from one address to another, whether they are written, and the argument's position."""


def _packed(
    signature: KernelSignature,
    kinds: Sequence[tuple[str, str]],
    words: ctypes.Array[ctypes.c_ulonglong],
    in_order: Sequence[Tensor | None],
) -> tuple[ctypes.Array[_Argument], list[_Region]]:
    """The arguments, of which structs lie in the words, and the memory of tensors."""
    tensors = dict(zip(signature.pointers, in_order))
    packed = (_Argument * max(len(kinds), 1))()
    regions: list[_Region] = []
    for i, (offset, (kind, pointee)) in enumerate(zip(signature.offsets, kinds, strict=True)):
        packed[i].buffer = _STRUCT if kind == "s" else _WORD
        packed[i].value = ctypes.addressof(words) + 8 * offset if kind == "s" else words[offset]
        tensor = tensors.get(i)
        if tensor is None:
            continue
        name = signature.parameters[i].name
        _check_pointee(f"{signature.where}: {name}", kind == "c", pointee, tensor)
        start, end = range_of(tensor)
        packed[i].value = start
        regions.append((start, end, kind == "p", i))
    return packed, regions


def _check_pointee(where: str, is_constant: bool, pointee: str, tensor: Tensor) -> None:
    if not tensor.is_cpu:
        raise ValueError(f"launches run on cuda or cpu tensors, but got {tensor.device} tensors")
    if not _element_fits(pointee, tensor.dtype):
        constant = "const " if is_constant else ""
        raise LaunchError(
            f"{where} is a Tensor of {tensor.dtype}, but the parameter is "
            f"{constant}{_POINTEES[pointee]}*"
        )


def _buffers(merged: Sequence[_Region]) -> tuple[ctypes.Array[_Buffer], ctypes.Array[ctypes.c_int]]:
    """The memory that the launch may touch, and the positions of the arguments that brought it."""
    buffers = (_Buffer * max(len(merged), 1))()
    positions = (ctypes.c_int * max(len(merged), 1))()
    for j, (low, high, writable, first) in enumerate(merged):
        buffers[j].data, buffers[j].bytes, buffers[j].writable = low, high - low, writable
        positions[j] = first
    return buffers, positions


def _point(
    arguments: ctypes.Array[_Argument], regions: Sequence[_Region], merged: Sequence[_Region]
) -> None:
    """Let each pointer name its buffer, and how far behind its beginning it points."""
    for j, (low, high, _, first) in enumerate(merged):
        for start, _, _, i in regions:
            if low <= start < high or (start == low == high and first == i):
                arguments[i].buffer, arguments[i].offset = j, start - low


def _next_order() -> tuple[bool, int]:
    """The next launch: true if it is shuffled, and its own seed."""
    seed, launches = _schedule.seed, _schedule.launches
    _schedule.launches += 1
    if seed is None:
        return False, 0
    return True, (seed * 0x9E3779B97F4A7C15 + launches) & 0xFFFFFFFFFFFFFFFF


def _merge(regions: Sequence[_Region]) -> list[_Region]:
    """Join overlapping byte ranges, so that aliases stay aliases in the guarded copies.

    Empty ranges stay separate, because their null or shared addresses have no meaning.
    """
    merged: list[_Region] = []
    for start, end, writable, first in sorted(regions, key=lambda region: region[:2]):
        if merged and start < end and start < merged[-1][1]:
            low, high, is_written, index = merged[-1]
            merged[-1] = (low, max(high, end), is_written or writable, min(index, first))
        else:
            merged.append((start, end, writable, first))
    return merged
