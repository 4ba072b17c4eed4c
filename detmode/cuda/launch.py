"""Launching an entry of a source: CuPy for CUDA tensors, the host runner for CPU tensors."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from detmode.cuda import device as gpu
from detmode.cuda import host
from detmode.cuda.checks import check_devices
from detmode.cuda.dtypes import CTYPES
from detmode.cuda.signature import Bound
from detmode.cuda.source import Source

P = ParamSpec("P")
R = TypeVar("R")

__all__ = [
    "Launch",
    "UnsizedLaunch",
    "ctype",
    "forget_plans",
    "index_ctype",
    "lasting_stream",
    "launch",
    "launch_blocks",
    "load",
    "magic_numbers",
    "planned",
    "unavailable",
]

BLOCK = 256
_BLOCK = BLOCK, 1, 1
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


def magic_numbers(*divisors: int) -> list[int]:
    """The magic number of each of ``divisors``, the second argument of `divisor<index_t>`.

    The low 32 bits multiply, the high ones say by how much the product is shifted. A divisor of 0,
    the size of an empty tensor, has some number that no thread uses.
    """
    return [_MAGIC[n] if n < _KNOWN else _magic_number(n) for n in divisors]


def _magic_number(divisor: int) -> int:
    divisor = max(divisor, 1)
    shift = divisor.bit_length() - 1
    return ((1 << 32 + shift) - 1) // divisor | shift << 32


# Those of most sizes: looking one up takes a tenth of the time.
_KNOWN = 1024
_MAGIC = [_magic_number(n) for n in range(_KNOWN)]


def _triple(caller: str, name: str, value: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"{caller}(): {name} must have 1 to 3 sizes, but got {sizes}")
    x, y, z = sizes if len(sizes) == 3 else (*sizes, 1, 1)[:3]
    if x < 0 or y < 0 or z < 0:
        raise ValueError(f"{caller}(): {name} must not be negative, but got {sizes}")
    return x, y, z


def _checked_grid(caller: str, grid: int | Sequence[int]) -> tuple[int, int, int]:
    if type(grid) is int and 0 <= grid < 2**31:
        return grid, 1, 1
    x, y, z = blocks = _triple(caller, "grid", grid)
    if x >= 2**31 or y > 65535 or z > 65535:
        raise ValueError(
            f"{caller}(): grid must be below 2**31 along x, at most 65535 along y and z, but "
            f"got {blocks}"
        )
    return blocks


def _checked_block(caller: str, block: int | Sequence[int]) -> tuple[int, int, int]:
    if type(block) is int and 1 <= block <= 1024:
        return block, 1, 1
    threads = _triple(caller, "block", block)
    if not 1 <= math.prod(threads) <= 1024 or threads[2] > 64:
        raise ValueError(
            f"{caller}(): block must hold 1 to 1024 threads, at most 64 along z, but got {threads}"
        )
    return threads


def checked_sizes(
    caller: str, grid: int | Sequence[int], block: int | Sequence[int]
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Three sizes of a grid and of a block.

    Raises:
        ValueError: sizes that no GPU launches; the message begins with `caller`.
    """
    threads = _checked_block(caller, block)
    return _checked_grid(caller, grid), threads


def _grid_for(threads: int) -> tuple[int, int, int]:
    if threads < 0:
        raise ValueError(f"launch(): threads must not be negative, but got {threads}")
    blocks = (threads + BLOCK - 1) // BLOCK
    # Of two numbers, min takes several times as long.
    return blocks if blocks < MAX_GRID else MAX_GRID, 1, 1


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
    bound = source.signature(entry).bind(arguments)
    _launch(source, entry, _grid_for(threads), _BLOCK, 0, bound)


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
    bound = source.signature(entry).bind(arguments)
    _launch(source, entry, *checked_sizes("launch_blocks", grid, block), shared, bound)


_new = object.__new__
# Not looked up in the argument: a storage has a method of this name, too.
_device_of = Tensor.get_device


class Launch:
    """A launch that still needs its tensors; a plan that is kept by shapes holds such ones.

    It is made as `launch` launches, of all arguments that are no pointers, or by `of_blocks`, as
    `launch_blocks` does; or of an `UnsizedLaunch`. A call gives the pointers' arguments by name,
    and launches.

    Raises:
        ValueError, TypeError: as `launch`.
    """

    __slots__ = ("_grid", "_signature", "_what", "_words")

    def __init__(self, source: Source, entry: str, threads: int, /, **numbers: object) -> None:
        self._plan(source, entry, _grid_for(threads), _BLOCK, 0, numbers)

    @classmethod
    def of_blocks(
        cls,
        source: Source,
        entry: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        /,
        shared: int = 0,
        **numbers: object,
    ) -> Launch:
        """A launch with an explicit grid and block."""
        made = _new(cls)
        made._plan(source, entry, *checked_sizes("launch_blocks", grid, block), shared, numbers)
        return made

    def _plan(
        self,
        source: Source,
        entry: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        numbers: dict[str, object],
    ) -> None:
        self._what = source, entry, block, shared
        self._grid = grid
        self._signature = source.signature(entry)
        self._words = self._signature.bind_numbers(numbers)

    def __repr__(self) -> str:
        source, entry, block, _ = self._what
        return f"<Launch of {entry} of {source}: grid {self._grid}, block {block}>"

    def __call__(self, /, **tensors: Tensor | None) -> None:
        """Launch with these tensors, as `launch` does.

        Raises:
            ValueError, TypeError, RuntimeError, detmode.cuda.host.LaunchError: as `launch`.
        """
        source, entry, block, shared = self._what
        bound = self._words, self._signature.bind_tensors(tensors)
        _launch(source, entry, self._grid, block, shared, bound)


class UnsizedLaunch:
    """A launch whose grid, and some of whose numbers, are still to come: those that shapes decide.

    A `Launch` that it makes takes a third of the time of a new one, of which all numbers are
    checked and packed.

    Args:
        source: the `.cu` file.
        entry: one of `source.entries`.
        open: the parameters whose numbers are to come.
        block: threads of a block, as for `launch_blocks`.
        shared: bytes of dynamic shared memory.
        numbers: the arguments of all other parameters that are no pointers, as for `launch`.

    Raises:
        ValueError, TypeError: as `launch_blocks`.
    """

    __slots__ = ("_fixed", "_open", "_pack")

    def __init__(
        self,
        source: Source,
        entry: str,
        open: Sequence[str],
        block: int | Sequence[int] = BLOCK,
        shared: int = 0,
        /,
        **numbers: object,
    ) -> None:
        threads = _checked_block("UnsizedLaunch", block)
        signature = source.signature(entry)
        self._fixed = (source, entry, threads, shared), signature
        self._open = tuple(open)
        self._pack = signature.packer(open, numbers)

    def of_threads(self, threads: int, /, *numbers: Any) -> Launch:
        """Make the launch with at least ``threads`` threads, in blocks of 256.

        Args:
            threads: as for `launch`.
            numbers: the open ones, in the order of their names; of a struct, its members' values.

        Raises:
            ValueError: ``threads`` is negative, the parameters do not hold such numbers, or the
                block has not 256 threads.
        """
        return self._made(self._grid_for(threads), numbers)

    def of_blocks(self, grid: int | Sequence[int], /, *numbers: Any) -> Launch:
        """Make the launch with a grid, as for `launch_blocks`; otherwise as :meth:`of_threads`."""
        return self._made(_checked_grid("of_blocks", grid), numbers)

    def launch(self, threads: int, /, *numbers: Any, **tensors: Tensor | None) -> None:
        """Launch at once what :meth:`of_threads` makes, for a launch that is not kept.

        Raises:
            ValueError: as :meth:`of_threads`.
            ValueError, TypeError, RuntimeError, detmode.cuda.host.LaunchError: as `launch`.
        """
        blocks = self._grid_for(threads)
        (source, entry, block, shared), signature = self._fixed
        bound = self._packed(numbers), signature.bind_tensors(tensors)
        _launch(source, entry, blocks, block, shared, bound)

    def launch_blocks(
        self, grid: int | Sequence[int], /, *numbers: Any, **tensors: Tensor | None
    ) -> None:
        """Launch at once what :meth:`of_blocks` makes; otherwise as :meth:`launch`."""
        blocks = _checked_grid("launch_blocks", grid)
        (source, entry, block, shared), signature = self._fixed
        bound = self._packed(numbers), signature.bind_tensors(tensors)
        _launch(source, entry, blocks, block, shared, bound)

    def _grid_for(self, threads: int) -> tuple[int, int, int]:
        if self._fixed[0][2] != _BLOCK:
            raise ValueError(f"{self!r} has a block of its own; call of_blocks or launch_blocks")
        return _grid_for(threads)

    def _made(self, grid: tuple[int, int, int], numbers: tuple[Any, ...]) -> Launch:
        made = _new(Launch)
        made._what, made._signature = self._fixed
        made._grid = grid
        made._words = self._packed(numbers)
        return made

    def _packed(self, numbers: tuple[Any, ...]) -> bytes:
        try:
            return self._pack(*numbers)
        except (TypeError, struct.error):
            raise ValueError(
                f"{self._fixed[1].where}: {', '.join(self._open)} cannot hold {numbers}"
            ) from None

    def __repr__(self) -> str:
        source, entry, block, _ = self._fixed[0]
        return f"<UnsizedLaunch of {entry} of {source}: block {block}>"


_plans: list[Any] = []


def planned(plan: Callable[P, R]) -> Callable[P, R]:
    """Keep what a function plans, such as launches, by its arguments: the last 4096 of them."""
    kept = functools.lru_cache(maxsize=4096)(plan)
    _plans.append(kept)
    return cast("Callable[P, R]", kept)


def forget_plans() -> None:
    """Let everything be planned anew, where what plans depend on has changed: in tests."""
    for kept in _plans:
        kept.cache_clear()


def _launch(
    source: Source,
    entry: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared: int,
    bound: Bound,
) -> None:
    first, index = None, 0
    try:
        for tensor in bound[1]:
            if tensor is None:
                continue
            if first is None:
                first = tensor
                # Quicker than the device, of which PyTorch makes an object each time.
                index = _device_of(tensor)
            elif _device_of(tensor) != index:
                check_devices(entry, first, tensor)
    except TypeError:
        # Something was no tensor; only then is it worth looking for which.
        source.signature(entry).check_tensors(bound[1])
        raise
    if first is None:
        raise ValueError("a launch needs at least one tensor: its device decides where it runs")
    if 0 in grid:
        return
    if first.is_cuda:
        gpu.launch_blocks(source, entry, grid, block, bound, shared, index)
    else:
        host.launch_blocks(source, entry, grid, block, bound, shared)


def lasting_stream(tensor: Tensor) -> int | None:
    """The stream in whose order later launches find what a launch on a tensor's device writes now.

    None where nothing can be kept for them: while a CUDA graph captures the stream, on a GPU that
    is not the current one, and on the CPU, where every launch is to be tested in every schedule.
    """
    return gpu.lasting_stream(tensor.get_device()) if tensor.is_cuda else None


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
