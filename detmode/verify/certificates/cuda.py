"""Certificates of CUDA C++: compiled for the host, and run by the host runner in many schedules."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detmode.cuda import host
from detmode.cuda.host.foreign import ForeignSource
from detmode.cuda.host.watch import Watch
from detmode.cuda.launch import checked_sizes
from detmode.verify.certificates.certificate import (
    FLOAT_ADD,
    PROGRAM_ORDER,
    Certificate,
    FoundError,
    KernelVerdict,
    Variation,
    compare,
    described,
    first_variation,
    in_turns,
    not_ended,
    shuffled_by,
)
from detmode.verify.certificates.copies import FILLS, copies_of
from detmode.verify.certificates.orders import ORDERED, READ, Conflicts

CHECKED = 5
"""The schedules, the first ones, in which data races are looked for."""
TOUCHED = 1 << 17
"""The most accesses of blocks that are noted to find conflicting blocks; 2 MiB."""

_ATOMICS = (
    "integer add",
    *["minimum or maximum"] * 2,
    *["bitwise"] * 3,
    "integer add",
    FLOAT_ADD,
    "exchange",
    "compare-and-swap",
)
"""By the bits of AtomicKind in intrinsics.h."""

_VERDICTS = {
    host.DATA_RACE: KernelVerdict.RACE,
    host.OUT_OF_BOUNDS: KernelVerdict.OUT_OF_BOUNDS,
}
"""By the status of a launch; a fault otherwise."""

NOT_SHOWN = (
    "other inputs, shapes and launch sizes than these",
    "reorderings of memory accesses that only a GPU makes; data races, which they need, are found "
    "by clocks",
    "the order of additions inside tensor cores, and the last bits of a GPU's own functions",
    "libraries that the kernel's program calls, such as cuBLAS and CUB",
)


def certify(
    kernel: str | Path | object,
    arguments: Mapping[str, Any] | Sequence[Any],
    *,
    repeats: int,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    entry: str | None,
    shared_memory: int,
    constants: Mapping[str, Any],
    outputs: Sequence[str],
    seed: int,
    timeout: float,
) -> Certificate:
    """Certify a kernel of CUDA C++; the arguments are those of :func:`detmode.certify`."""
    sizes = checked_sizes("certify", grid, block)
    launch = _Launch(_source(kernel, entry), arguments, sizes, shared_memory, constants, outputs)
    launch.timeout = timeout
    search = _Search(launch)
    verdict, reason = KernelVerdict.ORDER_INDEPENDENT, None
    try:
        search.all_schedules(repeats, seed)
    except FoundError as error:
        verdict, reason = error.verdict, error.reason
    except host.LaunchError as error:
        verdict, reason = _VERDICTS.get(error.status, KernelVerdict.FAULT), str(error)
    ran = (name for bit, name in enumerate(_ATOMICS) if launch.atomics >> bit & 1)
    kinds = tuple(dict.fromkeys(ran))
    return Certificate(
        kernel=launch.source.entry,
        language="CUDA C++",
        sha256=hashlib.sha256(launch.source.original.encode()).hexdigest(),
        arguments=launch.described(),
        grid=sizes[0],
        block=sizes[1],
        schedules=search.runs,
        all_orders=search.all_orders and verdict is KernelVerdict.ORDER_INDEPENDENT,
        races_checked=True,
        verdict=verdict,
        variation=reason if isinstance(reason, Variation) else None,
        reason=reason if isinstance(reason, str) else None,
        atomics=kinds,
        float_adds=launch.float_adds(),
        notes=tuple(_notes(verdict, kinds)),
        not_shown=NOT_SHOWN,
    )


def _notes(verdict: KernelVerdict, atomics: Sequence[str]) -> Iterator[str]:
    if FLOAT_ADD in atomics and verdict is KernelVerdict.ORDER_INDEPENDENT:
        yield (
            "atomic additions of floats ran: they round, so other values may give other bits in "
            "another order"
        )
    if "compare-and-swap" in atomics and verdict is KernelVerdict.ORDER_INDEPENDENT:
        yield "compare-and-swap ran: a loop of it may add floats, which round"


@functools.lru_cache(maxsize=256)
def _foreign(text: str, entry: str | None, path: Path, defines: tuple[str, ...]) -> ForeignSource:
    return ForeignSource(text, entry, path, defines)


def _source(kernel: object, entry: str | None) -> ForeignSource:
    defines: tuple[str, ...] = ()
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(kernel, (cupy.RawKernel, cupy.RawModule)):
        defines = tuple(kernel.options)
        entry = entry or getattr(kernel, "name", None)
        kernel = kernel.code if kernel.code is not None else Path(kernel.file_path)
    if isinstance(kernel, str):
        if "__global__" in kernel:
            return _foreign(kernel, entry, Path("kernel.cu"), defines)
        kernel = Path(kernel)
    if not isinstance(kernel, Path):
        raise TypeError(
            "certify(): kernel must be CUDA C++ as text, the path of a .cu file, a cupy.RawKernel "
            f"or RawModule, or a kernel of triton.jit, but got {type(kernel).__name__}"
        )
    try:
        text = kernel.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"certify(): {str(kernel)!r} is no text with a __global__ function, and as a file it "
            f"cannot be read: {error.strerror}"
        ) from None
    return _foreign(text, entry, kernel.absolute(), defines)


class _Launch:
    """One launch, which can be made again and again from the same state."""

    def __init__(
        self,
        source: ForeignSource,
        arguments: Mapping[str, Any] | Sequence[Any],
        sizes: tuple[tuple[int, int, int], tuple[int, int, int]],
        shared_memory: int,
        constants: Mapping[str, Any],
        outputs: Sequence[str],
    ) -> None:
        self.source = source
        self.blocks = sizes[0][0] * sizes[0][1] * sizes[0][2]
        self.atomics = 0
        self._float_adds: set[int] = set()
        self.timeout: float | None = None
        self._sizes = sizes
        self._shared_memory = shared_memory
        self._signature = source.signature(source.entry)
        self._values = self._signature.in_order(arguments)
        self._words, tensors = self._signature.bind(self._values)
        names = self._signature.names
        pointers = [names[i] for i in self._signature.pointers]
        self._tensors = dict(zip(pointers, tensors, strict=True))
        self._constant = {names[i] for i in self._signature.constant}
        for name in outputs:
            if not isinstance(self._tensors.get(name), Tensor):
                raise ValueError(f"certify(): outputs: {name!r} is no tensor among the arguments")
        self._outputs = tuple(outputs)
        self._variables = {
            name: source.library.variable(i) for i, name in enumerate(source.exported)
        }
        self._first = {name: bytes(memory) for name, memory in source.initial.items()}
        for name, value in constants.items():
            self._first[name] = self._constant_bytes(name, value)

    def _constant_bytes(self, name: str, value: Any) -> bytes:
        if name not in self.source.variables:
            known = ", ".join(self.source.variables) or "none"
            raise ValueError(f"certify(): constants: no variable {name!r}; the source has {known}")
        constant = torch.as_tensor(value, device="cpu").detach().contiguous().flatten()
        packed = bytes(constant.view(torch.uint8).tolist())
        size = len(self._variables[name])
        if len(packed) > size:
            raise ValueError(
                f"certify(): constants: {name!r} has {size} bytes, but {len(packed)} are given; "
                "give a tensor of the variable's dtype"
            )
        return packed + self._first[name][len(packed) :]

    def described(self) -> tuple[str, ...]:
        return tuple(
            f"{name}: {described(value)}"
            for name, value in zip(self._signature.names, self._values, strict=True)
        )

    def float_adds(self) -> tuple[str, ...]:
        lines = map(self.source.library.line_of, sorted(self._float_adds))
        return tuple(dict.fromkeys(filter(None, lines)))

    def run(self, watch: Watch, seed: int | None = None, fill: int = 0) -> dict[str, Tensor]:
        """Launch once and return what was written, by name.

        Without a seed, the schedule is program order or that of ``watch``. ``fill`` chooses the
        bytes that the outputs begin with.
        """
        watch.timeout = self.timeout
        tensors, *_ = copies_of(self._tensors)
        for name in self._outputs:
            _fill(tensors[name], fill)
        for name, memory in self._variables.items():
            memory[:] = self._first[name]
        try:
            with host.schedule(seed):
                host.launch_blocks(
                    self.source,
                    self.source.entry,
                    *self._sizes,
                    (self._words, tuple(tensors.values())),
                    self._shared_memory,
                    watch,
                )
        except host.LaunchError as error:
            if error.status != host.STOPPED:
                raise
            name = _schedule_name(watch, seed)
            raise TimeoutError(not_ended(self.source.entry, name, self.timeout)) from error
        finally:
            self.atomics |= watch.atomics
            self._float_adds |= watch.float_adds
        results = {
            name: tensor
            for name, tensor in tensors.items()
            if tensor is not None and name not in self._constant
        }
        for name, is_constant in self.source.variables.items():
            if not is_constant:
                results[name] = torch.frombuffer(
                    bytearray(self._variables[name]), dtype=torch.uint8
                )
        return results

    def unwritten(self) -> str | None:
        """Return what is wrong with the outputs: an element that is not written, say."""
        if not self._outputs:
            return None
        outputs = [self.run(Watch(races=False), fill=fill) for fill in range(len(FILLS))]
        difference = first_variation(("", ""), *outputs)
        if difference is None:
            return None
        place = f"{difference.argument}{list(difference.element)}"
        before = torch.empty_like(outputs[0][difference.argument])
        _fill(before, 0)
        across_fills = first_variation(
            ("", ""),
            {"": before[difference.element]},
            {"": outputs[0][difference.argument][difference.element]},
        )
        if across_fills is None and difference.argument in self._outputs:
            return f"output {place} is never written"
        return f"{place} depends on what the outputs held before the launch"


def _schedule_name(watch: Watch, seed: int | None) -> str:
    return in_turns("blocks", watch.block_order or ()) if seed is None else shuffled_by(seed)


def _fill(tensor: Tensor, fill: int) -> None:
    byte = FILLS[fill] if tensor.dtype is not torch.bool else 1 - fill
    like = torch.full((tensor.itemsize,), byte, dtype=torch.uint8, device="cpu").view(tensor.dtype)
    tensor.copy_(like[0].expand(tensor.shape))


class _Search:
    """The schedules of one launch, one after another, until one differs or all have been run."""

    def __init__(self, launch: _Launch) -> None:
        self._launch = launch
        self.runs = 0
        self.all_orders = False

    def _run(self, watch: Watch, seed: int | None = None) -> dict[str, Tensor]:
        results = self._launch.run(watch, seed)
        self.runs += 1
        return results

    def all_schedules(self, repeats: int, seed: int) -> None:
        """Run all; raise where two differ in their bits, or an output is wrong."""
        watch = Watch(races=True, capacity=TOUCHED)
        first = self._run(watch)
        for number in range(1, repeats):
            result = self._run(Watch(races=number < CHECKED), seed + number)
            compare((PROGRAM_ORDER, shuffled_by(seed + number)), first, result)
        self.all_orders = self._every_order(first, watch)
        if (reason := self._launch.unwritten()) is not None:
            raise FoundError(KernelVerdict.FAULT, reason)

    def _every_order(self, first: dict[str, Tensor], watch: Watch) -> bool:
        """Run all orders of blocks that can be told apart; false if they are too many."""
        if watch.stopped or (touched := watch.touched) is None:
            return False
        conflicts = Conflicts(self._launch.blocks)
        conflicts.add(*_uses(touched))
        orders = conflicts.orders()
        done = {tuple(range(self._launch.blocks))}
        while orders:
            order = orders.pop()
            if order in done:
                continue
            done.add(order)
            watch = Watch(races=False, order=order, capacity=TOUCHED)
            compare((PROGRAM_ORDER, in_turns("blocks", order)), first, self._run(watch))
            if (touched := watch.touched) is None or watch.stopped:
                return False
            if conflicts.add(*_uses(touched)):
                orders = conflicts.orders()
        return orders is not None


def _uses(touched: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the block, the kind and the place of each row of ``Watch.touched``."""
    rows = touched.numpy()
    _, places = np.unique(rows[:, 2:], axis=0, return_inverse=True)
    # Of the host's kinds, those that write take their order, and those from 4 on commute.
    kinds = np.select([rows[:, 1] < 2, rows[:, 1] < 4], [READ, ORDERED], ORDERED + rows[:, 1] - 3)
    return rows[:, 0], kinds, places.reshape(-1)
