"""Single calls timed side by side: on a GPU by CUDA events, on the host by its clock.

``torch.utils.benchmark.Timer`` times what runs many times in a row on the same inputs, by the
host's clock. Here each call finds its inputs in memory and not in the cache, several ways take
turns, and a GPU is kept busy until the host has queued the call, so that a time is the GPU's and
not the host's.
"""

from __future__ import annotations

import os
import statistics
import time
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.benchmark import timer

from detmode.bits.tensors import parts

PATIENCE = 2.0
"""Seconds that one thing may take beside others: those of a round trip to the CPU are many."""
LEAD = 0.02
"""Seconds for which the GPU waits at most, so that the host can queue a call: one that makes the
host wait anyway does not hold the GPU for its whole length."""
CYCLES_A_SECOND = 2.0e9
"""No GPU runs faster; one that is slower is kept busy for longer."""


class Clock:
    """A clock for calls, on PyTorch's current GPU and stream or on the host.

    Attributes:
        device: the device of the calls: the GPU, where there is one.
        cache_bytes: the size of the last cache before the memory.
    """

    def __init__(self) -> None:
        if torch.cuda.is_available():
            self.device = torch.device("cuda", torch.cuda.current_device())
            self.cache_bytes: int = torch.cuda.get_device_properties(self.device).L2_cache_size
        else:
            self.device, self.cache_bytes = torch.device("cpu"), _cpu_cache_bytes()
        self._twice = torch.zeros(2 * self.cache_bytes // 4, device=self.device)

    def clear_cache(self) -> None:
        """Read twice what the cache holds; on a GPU this is queued before what follows.

        What is written instead would be in the cache, and go to memory during the next call.
        """
        self._twice.sum()

    def seconds(self, run: Callable[[], object], lead: float = 0.0) -> float:
        """Seconds of one call; the GPU is kept busy for ``lead`` seconds before it."""
        if self.device.type == "cpu":
            return timeit.timeit(run, number=1)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if lead:
            torch.cuda._sleep(int(lead * CYCLES_A_SECOND))
        start.record()
        run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3


def _cpu_cache_bytes() -> int:
    names = ("SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE")
    sizes = (os.sysconf(name) for name in names if name in os.sysconf_names)
    return next((size for size in sizes if size > 0), 32 << 20)


@dataclass(frozen=True)
class Spread:
    """Times in seconds: the median and the quartiles around it."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, times: Sequence[float]) -> Spread:
        """Of at least two times."""
        low, median, high = statistics.quantiles(times, n=4, method="inclusive")
        return cls(median, low, high, len(times))

    def __str__(self) -> str:
        """In microseconds: ``12.3 (12.1 to 12.9)``."""
        return f"{_short(self.median)} ({_short(self.low)} to {_short(self.high)})"


def _short(seconds: float) -> str:
    return f"{seconds * 1e6:#.3g}".rstrip(".") if seconds < 1e-3 else f"{seconds * 1e6:.0f}"


@dataclass(frozen=True)
class Timed:
    """One of the things that are timed side by side.

    Args:
        run: one call.
        around: is entered before a call and left after it, outside its time.
    """

    run: Callable[[], object]
    around: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)


def in_turns(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Each round's number with each name, of which another one is first in the next round."""
    for number in range(rounds):
        first = number % max(len(names), 1)
        yield from ((number, name) for name in (*names[first:], *names[:first]))


def interleaved(
    timed: Mapping[str, Timed],
    clock: Clock,
    rounds: int,
    warm_up: int = 3,
    *,
    ahead: float = LEAD,
    cold: bool = True,
) -> dict[str, Spread]:
    """Time each thing once a round, in turning order, after a warm-up that does not count.

    Args:
        timed: the calls to time, by name; may be empty.
        clock: the clock that times them.
        rounds: their number; what takes long leaves after :data:`PATIENCE`, and after three rounds
            at the earliest.
        warm_up: calls before.
        ahead: seconds that the GPU may wait for the host to queue a call; with 0 the time is that
            of the slower of both.
        cold: whether the cache is cleared before each call.

    Raises:
        ValueError: fewer than two rounds.
    """
    if rounds < 2:
        raise ValueError(f"interleaved(): a spread needs two rounds or more, but got {rounds}")
    warm = {name: _warm(each, warm_up) for name, each in timed.items()}
    last = {name: max(3, int(PATIENCE / max(whole, 1e-9))) for name, (_, whole) in warm.items()}
    times: dict[str, list[float]] = {name: [] for name in timed}
    for number, name in in_turns(list(timed), rounds):
        if number >= last[name]:
            continue
        if cold:
            clock.clear_cache()
        with timed[name].around():
            # Twice, since a call among others is slower than one after itself.
            seconds = clock.seconds(timed[name].run, min(2 * warm[name][0], ahead))
        times[name].append(seconds)
    return {name: Spread.of(mine) for name, mine in times.items()}


def _warm(timed: Timed, calls: int) -> tuple[float, float]:
    """Run a few calls; for how many seconds the last one held the host, and how many it took."""
    busy = whole = 0.0
    with timed.around():
        for _ in range(calls):
            start = timer()  # waits for the GPU
            timed.run()
            busy = time.perf_counter() - start
            whole = timer() - start
            if whole > PATIENCE / 3:
                break
    return busy, whole


def bytes_of(values: Any) -> int:
    """The bytes of all tensors in a structure; of expanded and repeated ones those in memory."""
    seen: dict[tuple[Any, ...], int] = {}
    for tensor in (part for each in tensors_of(values) for part in parts(each).values()):
        own = tensor[tuple(slice(1 if stride == 0 else None) for stride in tensor.stride())]
        seen[(own.data_ptr(), own.dtype, own.shape, own.stride())] = own.nbytes
    return sum(seen.values())


def tensors_of(values: Any) -> list[Tensor]:
    """The tensors in nested dicts, lists and tuples."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def copy_bandwidth(clock: Clock, n_bytes: int, rounds: int = 20) -> float:
    """Bytes a second, read and written, of a copy from memory to memory."""
    source = torch.zeros(n_bytes, dtype=torch.uint8, device=clock.device)
    target = torch.empty_like(source)
    spread = interleaved({"copy": Timed(lambda: target.copy_(source))}, clock, rounds)
    return 2 * n_bytes / spread["copy"].median
