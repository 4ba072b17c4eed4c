"""Launching an entry of a source: CuPy for CUDA tensors, the host runner for CPU tensors."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from detmode.cuda import device as gpu
from detmode.cuda import host
from detmode.cuda.dtypes import CTYPES
from detmode.cuda.signature import Bound
from detmode.cuda.source import Source

__all__ = [
    "ctype",
    "empty",
    "empty_like",
    "index_ctype",
    "launch",
    "launch_blocks",
    "load",
    "magic_numbers",
    "unavailable",
]

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


def index_ctype(*counts: int) -> str:
    """The type in which a kernel can count up to each of ``counts``, as a template's argument.

    ``"int32_t"`` where none is above 2**29, otherwise ``"int64_t"``.
    """
    return "int32_t" if max(counts) <= SHORT else "int64_t"


def magic_numbers(*divisors: int) -> tuple[int, ...]:
    """The magic number of each of ``divisors``, the second argument of `divisor<index_t>`.

    The low 32 bits multiply, the high ones say by how much the product is shifted. A divisor of 0,
    the size of an empty tensor, has some number that no thread uses.
    """
    return tuple(map(_magic_number, divisors))


@functools.lru_cache(maxsize=4096)
def _magic_number(divisor: int) -> int:
    divisor = max(divisor, 1)
    shift = divisor.bit_length() - 1
    return ((1 << 32 + shift) - 1) // divisor | shift << 32


def _triple(name: str, value: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"launch_blocks(): {name} must have 1 to 3 sizes, but got {sizes}")
    if min(sizes) < 0:
        raise ValueError(f"launch_blocks(): {name} must not be negative, but got {sizes}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _device(bound: Bound) -> torch.device:
    values, tensors, _ = bound
    if not tensors:
        raise ValueError("a launch needs at least one tensor: its device decides where it runs")
    found: torch.device = values[tensors[0]].device
    for i in tensors[1:]:
        if values[i].device != found:
            raise ValueError(
                f"all tensors of a launch must be on one device, but got {found} and "
                f"{values[i].device}"
            )
    return found


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
            argument no parameter, a number is beyond its parameter, or the tensors' devices differ.
        TypeError: an argument is of another kind than its parameter.
        RuntimeError: launching is impossible here (see `unavailable`).
        detmode.cuda.host.LaunchError: on the host, see there.
    """
    if threads < 0:
        raise ValueError(f"launch(): threads must not be negative, but got {threads}")
    grid = min((threads + BLOCK - 1) // BLOCK, MAX_GRID)
    _launch(source, entry, (grid, 1, 1), (BLOCK, 1, 1), arguments, 0)


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
    blocks, threads = _triple("grid", grid), _triple("block", block)
    if not 1 <= threads[0] * threads[1] * threads[2] <= 1024 or threads[2] > 64:
        raise ValueError(
            f"launch_blocks(): block must hold 1 to 1024 threads, at most 64 along z, but got "
            f"{threads}"
        )
    if blocks[0] >= 2**31 or blocks[1] > 65535 or blocks[2] > 65535:
        raise ValueError(
            f"launch_blocks(): grid must be below 2**31 along x, at most 65535 along y and z, but "
            f"got {blocks}"
        )
    _launch(source, entry, blocks, threads, arguments, shared)


def _launch(
    source: Source,
    entry: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    arguments: dict[str, object],
    shared: int,
) -> None:
    signature = source.signatures.get(entry) or source.signature(entry)
    bound = signature.bind(arguments)
    if 0 in grid:
        return
    device = _device(bound)
    # The properties of a tensor are quicker than device.type.
    first = bound[0][bound[1][0]]
    if first.is_cuda:
        gpu.launch_blocks(source, entry, grid, block, bound, shared, device)
    elif first.is_cpu:
        host.launch_blocks(source, entry, grid, block, bound, shared)
    else:
        raise ValueError(f"launches run on cuda or cpu tensors, but got {device.type} tensors")


def load(source: Source, entries: Sequence[str], device: torch.device) -> tuple[str, ...]:
    """Compile and load entries, as their first launches on `device` would.

    Args:
        source: the `.cu` file.
        entries: some of `source.entries`; the host runner has all of them in one library.
        device: `"cuda"` or `"cpu"`, for the host runner.

    Returns:
        Those of `entries` that were compiled, and neither loaded before nor found in the cache.

    Raises:
        RuntimeError: launching is impossible here (see `unavailable`), or a CUDA graph capture is
            under way.
        CompileError: the file does not compile.
    """
    if device.type == "cpu":
        return tuple(entries) if host.load(source) else ()
    return tuple(entry for entry in entries if gpu.load(source, entry, device))


def _poison(tensor: Tensor) -> Tensor:
    if tensor.is_cpu and type(tensor) is Tensor and tensor.numel() > 0:
        # By address: a dispatch mode that the caller works under must not see a fill.
        if tensor.is_floating_point() or tensor.is_complex():
            byte = 0xFF
        elif tensor.dtype is torch.bool:
            byte = 0x01
        else:
            byte = 0xA5
        storage = tensor.untyped_storage()
        ctypes.memset(storage.data_ptr(), byte, storage.nbytes())
    return tensor


def empty(
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | str,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """`torch.empty`, on the CPU filled with what a kernel would not write.

    Floating-point and complex elements are NaN, integers have the bytes 0xA5, bools are True, so an
    element that a kernel forgets shows. On CUDA it is `torch.empty`.
    """
    return _poison(torch.empty(shape, dtype=dtype, device=device, memory_format=memory_format))


def empty_like(
    input: Tensor,
    *,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.preserve_format,
) -> Tensor:
    """`torch.empty_like`, on the CPU filled as by `empty`."""
    return _poison(torch.empty_like(input, dtype=dtype, memory_format=memory_format))


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
