"""Launching an entry of a source: CuPy for CUDA tensors, the host runner for CPU tensors."""

from __future__ import annotations

import functools
import keyword
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, ParamSpec, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from detmode.cuda import device as gpu
from detmode.cuda import host
from detmode.cuda.checks import check_devices
from detmode.cuda.dtypes import CTYPES
from detmode.cuda.recorder import recorder
from detmode.cuda.signature import Bound
from detmode.cuda.source import Source

P = ParamSpec("P")
R = TypeVar("R")

__all__ = [
    "MAGIC",
    "Launch",
    "UnsizedLaunch",
    "ctype",
    "forget_plans",
    "index_ctype",
    "launch",
    "launch_blocks",
    "load",
    "most_shared",
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
    for count in counts:
        if count > SHORT:
            return "int64_t"
    return "int32_t"


class _MagicNumbers(dict[int, int]):
    def __missing__(self, divisor: int) -> int:
        divisor = max(divisor, 1)
        shift = divisor.bit_length() - 1
        return ((1 << 32 + shift) - 1) // divisor | shift << 32


MAGIC = _MagicNumbers()
"""The magic number of each divisor, the second argument of `divisor<index_t>`.

The low 32 bits multiply, the high ones say by how much the product is shifted. A divisor of 0, the
size of an empty tensor, has some number that no thread uses.
"""
# Those of most sizes: looking one up takes a tenth of the time.
MAGIC.update((divisor, MAGIC[divisor]) for divisor in range(1024))


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
    # What launchers give, which is looked at sooner than in general.
    if type(grid) is tuple and len(grid) == 3:
        x, y, z = grid
        # All three bounds at once: numbers together have the bits, and the sign, that any has.
        if 0 <= x | (y | z) << 15 < 2**31:
            return grid
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
    _launch((source, entry, _BLOCK, 0), _grid_for(threads), bound)


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
    blocks, block = checked_sizes("launch_blocks", grid, block)
    _launch((source, entry, block, shared), blocks, bound)


Launch: TypeAlias = Callable[..., None]
"""A launch that still needs its tensors; a plan that is kept by shapes holds such ones.

An `UnsizedLaunch` makes it. A call gives the pointers' arguments by name, and launches; it raises
what `launch` raises, and TypeError for other names than the pointers'.
"""


class UnsizedLaunch:
    """A launch whose grid, and some of whose numbers, are still to come: those that shapes decide.

    Its functions are compiled for the entry's parameters, so that Python itself binds what they are
    called with; `launch` looks all of its arguments up, and checks them, at each call.

    Args:
        source: the `.cu` file.
        entry: one of `source.entries`.
        unset: the parameters whose numbers are to come.
        block: threads of a block, as for `launch_blocks`.
        shared: bytes of dynamic shared memory.
        numbers: the arguments of all other parameters that are no pointers, as for `launch`; and
            None for each pointer that no launch gives a tensor.

    Attributes:
        of_threads: makes a `Launch`; called with the number of threads, as for `launch`, and with
            the unset numbers in the order of their names; of a struct, its members' values. Raises
            ValueError if the number of threads is negative, the parameters do not hold such
            numbers, or the block has not 256 threads.
        of_blocks: the same, with a grid instead of the threads, as for `launch_blocks`.
        launch: launches at once what `of_threads` makes; called with the tensors, by name, as well.
        launch_blocks: likewise what `of_blocks` makes.

    Raises:
        ValueError, TypeError: as `launch_blocks`; ValueError, too, if a pointer is named by a word
            of Python's, or none is left for a tensor.
    """

    __slots__ = ("_what", "launch", "launch_blocks", "of_blocks", "of_threads")

    of_threads: Callable[..., Launch]
    of_blocks: Callable[..., Launch]
    launch: Callable[..., None]
    launch_blocks: Callable[..., None]

    def __init__(
        self,
        source: Source,
        entry: str,
        unset: Sequence[str],
        block: int | Sequence[int] = BLOCK,
        shared: int = 0,
        /,
        **numbers: object,
    ) -> None:
        threads = _checked_block("UnsizedLaunch", block)
        self._what = source, entry, threads
        signature = source.signature(entry)
        pointers = [signature.parameters[i].name for i in signature.pointers]
        absent = {name for name in pointers if numbers.get(name, ...) is None}
        numbers = {name: number for name, number in numbers.items() if name not in absent}
        if len(absent) == len(pointers):
            raise ValueError(f"{signature.where}: {_NOWHERE}")
        for name in pointers:
            if keyword.iskeyword(name) or name.startswith("_"):
                raise ValueError(f"{signature.where}: a launch cannot name {name!r}, rename it")
        make = _functions(tuple(pointers), frozenset(absent), len(unset))
        self.of_threads, self.of_blocks, self.launch, self.launch_blocks = make(
            signature.where,
            (source, entry, threads, shared),
            _grid_for if threads == _BLOCK else self._refuse_threads,
            signature.packer(unset, numbers),
        )

    def _refuse_threads(self, _: int) -> NoReturn:
        raise ValueError(f"{self!r} has a block of its own; call of_blocks or launch_blocks")

    def __repr__(self) -> str:
        source, entry, block = self._what
        return f"<UnsizedLaunch of {entry} of {source}: block {block}>"


# No pointer's name begins with an underscore.
_TEXT = """
def make(_where, _what, _grid_for, _pack):
    def _later(_grid, _words, /, *, {present}):
        try:
            _index = _device_of({first})
            _are_alike = {devices}
        except TypeError:
            _are_alike = False
        _bound = _words, ({all},)
        if _are_alike:
            _start(_what, _grid, _bound, {first}, _index)
        else:
            _launch(_what, _grid, _bound)

    def of_threads(_threads{unset}, /):
        return _partial(_later, _grid_for(_threads), {words})

    def of_blocks(_grid{unset}, /):
        return _partial(_later, _checked_grid("of_blocks", _grid), {words})

    def launch(_threads{unset}, /, *, {present}):
        _later(_grid_for(_threads), {words}, {by_name})

    def launch_blocks(_grid{unset}, /, *, {present}):
        _later(_checked_grid("launch_blocks", _grid), {words}, {by_name})

    for each in (_later, of_threads, of_blocks, launch, launch_blocks):
        # Of whom Python's errors speak.
        each.__qualname__ = _where
    return of_threads, of_blocks, launch, launch_blocks
"""
_partial = functools.partial


@functools.cache
def _functions(
    pointers: tuple[str, ...], absent: frozenset[str], n_unset: int
) -> Callable[..., tuple[Callable[..., Any], ...]]:
    """Compile what makes the functions of an `UnsizedLaunch`, for such parameters."""
    present = [name for name in pointers if name not in absent]
    unset = "".join(f", _{i}" for i in range(n_unset))
    devices = ["_index", *(f"_device_of({name})" for name in present[1:]), "_index"]
    text = _TEXT.format(
        present=", ".join(present),
        by_name=", ".join(f"{name}={name}" for name in present),
        first=present[0],
        devices=" == ".join(devices),
        all=", ".join("None" if name in absent else name for name in pointers),
        unset=unset,
        words=f"_pack({unset[2:]})",
    )
    namespace: dict[str, Any] = {}
    exec(text, globals(), namespace)
    return cast("Callable[..., tuple[Callable[..., Any], ...]]", namespace["make"])


_plans: list[Any] = []


def planned(plan: Callable[P, R]) -> Callable[P, R]:
    """Keep what a function plans, such as launches, by its arguments: the last 4096 of them."""
    cached = functools.lru_cache(maxsize=4096)(plan)
    _plans.append(cached)
    return cast("Callable[P, R]", cached)


def forget_plans() -> None:
    """Let everything be planned anew, where what plans depend on has changed: in tests."""
    for cached in _plans:
        cached.cache_clear()


# Not looked up in the argument: a storage has a method of this name, too.
_device_of = Tensor.get_device

_NOWHERE = "a launch needs at least one tensor: its device decides where it runs"

_What: TypeAlias = tuple[Source, str, tuple[int, int, int], int]
"""The source and the entry, the threads of a block, and its bytes of dynamic shared memory."""


def _launch(what: _What, grid: tuple[int, int, int], bound: Bound) -> None:
    """Launch where the tensors are, once it is known that they are at one place."""
    source, entry, _, _ = what
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
        raise ValueError(_NOWHERE)
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
    if (here := recorder()) is not None:
        here.launched(what, grid, bound)


def most_shared(tensor: Tensor) -> int:
    """Bytes of dynamic shared memory that a block may have where a tensor is, at most."""
    return gpu.most_shared(tensor.get_device()) if tensor.is_cuda else host.MOST_SHARED


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
