"""The host's cost of a substituted call, part by part.

``dispatch`` is PyTorch's: what an empty TorchDispatchMode adds. The others are detmode's: to find
what is known of the overload (``look up``), to bind the arguments and find the row (``bind``), of
which the conditions are ``match``, to count the call (``record``), and to put one CUDA kernel on
the stream (``launch``). Of the launch, ``launch, bound`` is what the driver's call takes when the
arguments lie ready, and ``launch, RawKernel`` is what CuPy's own call would take. Each is timed
alone, on the smallest arguments; ``host_calls.py`` times whole calls.
"""

import contextlib
import logging
import timeit
from collections.abc import Callable
from operator import sub
from typing import Any

import overhead
import torch
from timing import Spread
from torch.utils.benchmark import Timer

from detmode import DeterministicMode, cuda
from detmode.bits import digest
from detmode.cuda import launch
from detmode.mode.decide import Decision
from detmode.mode.handled import Handled
from detmode.mode.overload_info import OverloadInfo
from detmode.mode.row_counter import RowCounter
from detmode.process.interface import PYTHON
from detmode.rules import default_rules
from detmode.sites.forward_memory import forward_memory

OP = torch.ops.aten.index_add.default
LAUNCHES = ("launch", "launch, bound", "launch, RawKernel")


def host_cost(rounds: int, calls: int) -> dict[str, Spread | str]:
    """Every part, timed in ``rounds`` rounds of ``calls`` calls; or why it was not timed."""
    parts = {**_interception(rounds, calls), **_own(rounds, calls)}
    if cuda.unavailable("cuda") is not None:
        return {**parts, **dict.fromkeys(LAUNCHES, "needs a GPU")}
    return {**parts, **_launches(rounds, calls)}


def _interception(rounds: int, calls: int) -> dict[str, Spread]:
    ways = (contextlib.nullcontext, overhead.EmptyMode, DeterministicMode)
    times = overhead.measure({way.__name__: way for way in ways}, rounds, calls)
    none, empty, ours = times.values()
    pairs = {"dispatch": (empty, none), "look up": (ours, empty)}
    return {name: Spread.of([*map(sub, *pair)]) for name, pair in pairs.items()}


def _own(rounds: int, calls: int) -> dict[str, Spread]:
    args: tuple[Any, ...] = (torch.zeros(4), 0, torch.arange(4), torch.ones(4))
    rows = default_rules().get(OP)
    overload = OverloadInfo(OP, rows)

    def bound() -> Handled:
        return Handled(overload, args, {}, "cuda")

    call, decision = bound(), Decision("substitute", "it varies")
    recorder = RowCounter(logging.getLogger("detmode"), PYTHON)
    forward_memory().find_site(call, recorder.paths)
    parts: dict[str, Callable[[], object]] = {
        "bind": bound,
        "match": lambda: next(row for row in rows if row.rule.when(call)),
        "record": lambda: recorder.count(call, decision),
    }
    return _timed(parts, rounds, calls)


def _launches(rounds: int, calls: int, where: str = "cuda") -> dict[str, Spread]:
    from detmode.cuda import device

    data = torch.zeros(8, dtype=torch.uint8, device=where)
    sums = torch.zeros(2, dtype=torch.int64, device=where)

    def whole() -> None:
        launch(digest.SOURCE, "digest", 1, bytes=data, sums=sums, n_bytes=8)

    whole()  # compiles, loads, and leaves its arguments where the driver's call reads them
    kernel = device._kernels[digest.SOURCE, "digest", data.device.index]
    stream = torch.cuda.current_stream().cuda_stream
    bound = (kernel.function, *(1, 1, 1), *(256, 1, 1), 0, stream, kernel.slots.all[1], 0)
    pointers = (data.data_ptr(), sums.data_ptr(), 8)
    ways: tuple[Callable[[], object], ...] = (
        whole,
        lambda: kernel.launch_kernel(*bound),
        lambda: kernel.raw((1,), (256,), pointers),
    )
    # No more than the queue takes: a full one makes the host wait for the GPU.
    return _timed(dict(zip(LAUNCHES, ways)), rounds, min(calls, 500), "torch.cuda.synchronize()")


def _timed(
    parts: dict[str, Callable[[], object]], rounds: int, calls: int, setup: str = "pass"
) -> dict[str, Spread]:
    """Time each part by the host's clock alone: nothing waits for the GPU meanwhile."""
    found = {}
    for name, part in parts.items():
        timer = Timer("part()", setup, timer=timeit.default_timer, globals={"part": part})
        found[name] = Spread.of([timer.timeit(calls).median for _ in range(rounds)])
    return found
