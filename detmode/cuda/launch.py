"""Launching an entry of a source: CuPy for CUDA tensors, the host runner for CPU tensors."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from detmode.cuda import device as gpu
from detmode.cuda import host
from detmode.cuda.checks import check_devices
from detmode.cuda.dtypes import CTYPES
from detmode.cuda.recording import thread
from detmode.cuda.signature import Bound
from detmode.cuda.source import Source

BLOCK = 256
# More blocks than any GPU holds at once; the kernels' grid-stride loop does the rest.
MAX_GRID = 65536
# What a kernel may count in 32 bits: three of them added have less than 32.
SHORT = 1 << 29


def ctype(dtype: torch.dtype) -> str:
    """The name of `dtype` in CUDA code: `torch.float16` is `"half"`.

    Raises:
        TypeError: the CUDA code has no such type (complex32, quantized and 8-bit floats).
    """
    try:
        return CTYPES[dtype]
    except KeyError:
        raise TypeError(f"detmode's CUDA kernels do not support {dtype}") from None


def of_dtypes(dtypes: Iterable[torch.dtype], *kernels: str) -> tuple[str, ...]:
    """The entries of kernels that are templates of a dtype: all of one, then those of the next."""
    return tuple(f"{kernel}<{ctype(dtype)}>" for kernel in kernels for dtype in dtypes)


def index_ctype(*counts: int) -> str:
    """The type in which a kernel can count up to each of ``counts``, as a template's argument.

    ``"int32_t"`` where none is above 2**29, otherwise ``"int64_t"``.
    """
    return "int64_t" if max(counts) > SHORT else "int32_t"


def magic_number(divisor: int) -> int:
    """The magic number of a divisor, the second argument of `divisor<index_t>`.

    The low 32 bits multiply, the high ones say by how much the product is shifted. A divisor of 0,
    the size of an empty tensor, has some number that no thread uses.
    """
    if divisor <= 1:
        return 0xFFFFFFFF
    shift = divisor.bit_length() - 1
    return ((1 << 32 + shift) - 1) // divisor | shift << 32


def checked_sizes(
    caller: str, grid: int | Sequence[int], block: int | Sequence[int]
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Three sizes of a grid and of a block.

    Raises:
        ValueError: sizes that no GPU launches; the message begins with `caller`.
    """
    threads, blocks = _triple(caller, "block", block), _triple(caller, "grid", grid)
    x, y, z = threads
    if not 1 <= x * y * z <= 1024 or z > 64:
        raise ValueError(
            f"{caller}(): block must hold 1 to 1024 threads, at most 64 along z, but got {threads}"
        )
    x, y, z = blocks
    if x >= 2**31 or y > 65535 or z > 65535:
        raise ValueError(
            f"{caller}(): grid must be below 2**31 along x, at most 65535 along y and z, but "
            f"got {blocks}"
        )
    return blocks, threads


def _triple(caller: str, name: str, value: int | Sequence[int]) -> tuple[int, int, int]:
    if isinstance(value, int):
        x, y, z = value, 1, 1
    elif 1 <= len(value) <= 3:
        x, y, z = (*value, 1, 1)[:3]
    else:
        raise ValueError(f"{caller}(): {name} must have 1 to 3 sizes, but got {tuple(value)}")
    if x < 0 or y < 0 or z < 0:
        sizes = (value,) if isinstance(value, int) else tuple(value)
        raise ValueError(f"{caller}(): {name} must not be negative, but got {sizes}")
    return x, y, z


def launch(source: Source, entry: str, threads: int, /, **arguments: object) -> None:
    """Launches `entry` with at least `threads` threads in one dimension, 256 to a block.

    The grid is capped, so the kernel runs a grid-stride loop:
    `for (int64_t i = thread_index(); i < n; i += thread_count())`. Zero threads launch nothing.

    Args:
        source: the `.cu` file.
        entry: one of `source.entries`.
        threads: the number of threads.
        arguments: one for each parameter of the kernel, by its name, in any order. A pointer takes
            a Tensor or None, `bool` a bool, `int64_t` an int, `double` a float, a struct a
            NamedTuple with its members' names in their order. All tensors are on one device. CUDA:
            the launch goes to torch's current stream and returns at once. CPU: the host runner runs
            it to its end.

    Raises:
        ValueError: `threads` is negative, `entry` unknown, a parameter has no argument or an
            argument no parameter, or a number is beyond its parameter.
        TypeError: an argument is of another kind than its parameter.
        RuntimeError: the tensors' devices differ, or launching is impossible here (see
            `unavailable`).
        detmode.cuda.host.LaunchError: on the host, see there.
    """
    if threads < 0:
        raise ValueError(f"launch(): threads must not be negative, but got {threads}")
    blocks = min(-(-threads // BLOCK), MAX_GRID)
    _launch((source, entry, (BLOCK, 1, 1), 0), (blocks, 1, 1), arguments)


def launch_blocks(
    source: Source,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    /,
    shared: int = 0,
    **arguments: object,
) -> None:
    """Launches `entry` with an explicit grid and block. Otherwise as `launch`.

    Args:
        source: the `.cu` file.
        entry: one of `source.entries`.
        grid: blocks, an int or up to three sizes. A zero size launches nothing.
        block: threads of a block, an int or up to three sizes, at most 1024 together and 64 in z.
        shared: bytes of dynamic shared memory, `dynamic_shared<T>()` in the kernel.
        arguments: as for `launch`.

    Raises:
        ValueError: sizes that no GPU launches, otherwise as `launch`.
    """
    blocks, threads = checked_sizes("launch_blocks", grid, block)
    _launch((source, entry, threads, shared), blocks, arguments)


_What: TypeAlias = tuple[Source, str, tuple[int, int, int], int]
"""The source and the entry, the threads of a block, and its bytes of dynamic shared memory."""


def _launch(what: _What, grid: tuple[int, int, int], arguments: dict[str, object]) -> None:
    """Launch where the tensors are, once it is known that they are at one place."""
    source, entry, _, _ = what
    bound = source.signature(entry).bind(arguments)
    tensors = [tensor for tensor in bound[1] if tensor is not None]
    if not tensors:
        raise ValueError("a launch needs at least one tensor: its device decides where it runs")
    first, index = tensors[0], tensors[0].get_device()
    for tensor in tensors:
        if tensor.get_device() != index:
            check_devices(entry, first, tensor)
    _start(what, grid, bound, first, index)


def _start(
    what: _What, grid: tuple[int, int, int], bound: Bound, first: Tensor, index: int
) -> None:
    """Launch on the device of ``first``, where the others are."""
    if 0 in grid:
        return
    source, entry, block, shared = what
    if first.is_cuda:
        gpu.launch_blocks(source, entry, grid, block, bound, shared, index)
    else:
        host.launch_blocks(source, entry, grid, block, bound, shared)
    if thread.recorder is not None:
        thread.recorder.launched(what, grid, bound)


def most_shared(tensor: Tensor) -> int:
    """Bytes of dynamic shared memory that a block may have where a tensor is, at most."""
    return gpu.most_shared(tensor.get_device()) if tensor.is_cuda else host.MOST_SHARED


def load(source: Source, entries: Sequence[str], device: torch.device) -> tuple[str, ...]:
    """Compile and load entries, as their first launches on `device` would.

    Args:
        source: the `.cu` file.
        entries: some of `source.entries`; for the host runner those that it compiles together.
        device: `"cuda"` or `"cpu"`, for the host runner.

    Returns:
        Those of `entries` that were compiled, and neither loaded before nor found in the cache.

    Raises:
        RuntimeError: launching is impossible here (see `unavailable`), or a CUDA graph capture is
            under way.
        CompileError: the file does not compile.
    """
    if device.type == "cpu":
        return tuple(entries) if host.load(source, tuple(entries)) else ()
    return tuple(entry for entry in entries if gpu.load(source, entry, device))


@functools.cache
def unavailable(device_type: str) -> str | None:
    """Return why launches do not work on `"cuda"` or `"cpu"`, with the remedy; None if they do.

    The answer is cached for each device type; never raises.
    """
    if device_type == "cpu":
        return host.unavailable()
    if device_type == "cuda":
        return gpu.unavailable()
    return f"Launches run on cuda and cpu devices, not on {device_type}."
