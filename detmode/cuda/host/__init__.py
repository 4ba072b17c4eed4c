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

import torch
from torch import Tensor

from detmode.cuda.dtypes import CTYPES
from detmode.cuda.host.library import Build, Library, compile, default_build, load
from detmode.cuda.host.limit import limited
from detmode.cuda.host.toolchain import compiler, sanitizer_environment, unavailable
from detmode.cuda.host.watch import Watch
from detmode.cuda.signature import Bound
from detmode.cuda.source import Source
from detmode.process.undo import Undo

__all__ = [
    "MOST_SHARED",
    "Build",
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


class LaunchError(RuntimeError):
    """A launch did something that is an error or undefined on a GPU; the outputs are unchanged."""


class DeviceAssert(LaunchError):  # noqa: N818 -- the words of PyTorch's "device-side assert"
    """A `DETMODE_ASSERT` did not hold."""


class OutOfBounds(LaunchError):  # noqa: N818 -- as above
    """An access outside the memory of the launch."""


class DataRace(LaunchError):  # noqa: N818 -- as above
    """Two accesses, at least one of them a write, that nothing orders."""


class Stopped(LaunchError):  # noqa: N818 -- as above
    """The launch was ended before its end: its time was over, or Ctrl-C came."""


_ERRORS = (LaunchError, LaunchError, DeviceAssert, OutOfBounds, DataRace, Stopped)
"""By the status of state.h."""


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


_CODES = {
    torch.float16: "e",
    torch.bfloat16: "E",
    torch.float32: "f",
    torch.float64: "d",
    torch.complex64: "F",
    torch.complex128: "D",
    torch.bool: "?",
    torch.uint8: "B",
    torch.int8: "b",
    torch.int16: "h",
    torch.int32: "i",
    torch.int64: "q",
    torch.uint16: "H",
    torch.uint32: "I",
    torch.uint64: "Q",
}
_POINTEES = {code: CTYPES[dtype] for dtype, code in _CODES.items()} | {"*": "void"}


def _element_fits(pointee: str, dtype: torch.dtype) -> bool:
    if pointee == "*":
        return True
    code = _CODES.get(dtype)
    # Integers of one size pass for each other: atomics want the unsigned type.
    return code is not None and (
        code == pointee or (code.lower() == pointee.lower() and pointee in "bBhHiIqQ")
    )


def _extent(tensor: Tensor) -> int:
    """Return the bytes from the first element to the end of the last one in memory."""
    if tensor.numel() == 0:
        return 0
    if tensor.is_contiguous():
        return tensor.numel() * tensor.itemsize
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


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
    position = source.position(entry)
    races = _schedule.races or watch is not None
    library = compile(source, Build.RACES if races else default_build())
    kinds = library.kinds(position)
    signature = source.signature(entry)
    numbers, in_order = bound
    pointers = bytes(8 * len(signature.pointers))
    words = (ctypes.c_ulonglong * signature.n_words).from_buffer_copy(pointers + numbers)
    tensors = dict(zip(signature.pointers, in_order))
    packed = (_Argument * max(len(kinds), 1))()
    regions: list[tuple[int, int, bool, int]] = []
    for i, (offset, (kind, pointee)) in enumerate(zip(signature.offsets, kinds, strict=True)):
        packed[i].buffer = _STRUCT if kind == "s" else _WORD
        packed[i].value = ctypes.addressof(words) + 8 * offset if kind == "s" else words[offset]
        tensor = tensors.get(i)
        if tensor is None:
            continue
        if not tensor.is_cpu:
            raise ValueError(
                f"launches run on cuda or cpu tensors, but got {tensor.device} tensors"
            )
        if not _element_fits(pointee, tensor.dtype):
            constant = "const " if kind == "c" else ""
            raise LaunchError(
                f"{signature.where}: {signature.parameters[i].name} is a Tensor of {tensor.dtype}, "
                f"but the parameter is {constant}{_POINTEES[pointee]}*"
            )
        packed[i].value = start = tensor.data_ptr()
        regions.append((start, start + _extent(tensor), kind == "p", i))
    merged = _merge(regions)
    buffers = (_Buffer * max(len(merged), 1))()
    positions = (ctypes.c_int * max(len(merged), 1))()
    for j, (low, high, writable, first) in enumerate(merged):
        buffers[j].data, buffers[j].bytes, buffers[j].writable = low, high - low, writable
        positions[j] = first
        for start, _, _, i in regions:
            if low <= start < high or (start == low == high and first == i):
                packed[i].buffer, packed[i].offset = j, start - low
    seed = _schedule.seed
    mixed = 0
    if seed is not None:
        mixed = (seed * 0x9E3779B97F4A7C15 + _schedule.launches) & 0xFFFFFFFFFFFFFFFF
    _schedule.launches += 1
    with contextlib.nullcontext() if watch is None else limited(watch):
        status, message = library.launch(
            position,
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*block),
            shared,
            packed,
            len(kinds),
            buffers,
            positions,
            len(merged),
            seed is not None,
            mixed,
            None if watch is None else ctypes.byref(watch),
        )
    if status:
        names = [parameter.name for parameter in signature.parameters]
        message = _POSITION.sub(lambda match: repr(names[int(match[1])]), message)
        raise _ERRORS[status](f"{signature.where}: {message}")


def _merge(regions: list[tuple[int, int, bool, int]]) -> list[tuple[int, int, bool, int]]:
    """Join overlapping byte ranges, so that aliases stay aliases in the guarded copies.

    Empty ranges stay separate, because their null or shared addresses have no meaning.
    """
    merged: list[tuple[int, int, bool, int]] = []
    for start, end, writable, first in sorted(regions, key=lambda region: region[:2]):
        if merged and start < end and start < merged[-1][1]:
            low, high, is_written, index = merged[-1]
            merged[-1] = (low, max(high, end), is_written or writable, min(index, first))
        else:
            merged.append((start, end, writable, first))
    return merged
