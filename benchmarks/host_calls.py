"""The host's time of a whole substituted call, up to its launches, which are left out.

``again`` is the same call again and again, which a plan makes, and ``launcher`` the same without
plans. ``new shape`` is what a call with shapes that are new takes more than a launcher with shapes
that were called once. With ``--device cuda`` the launches are made, and
nothing waits for them. Otherwise the tensors are on the CPU, and the mode's
``simulate`` is "cuda": what a launch does for a GPU is done, up to the driver's call, and what is
done for CPU tensors alone is not. ATen's own operators are included as the CPU runs them, on a few
elements each. Times are of one thread, each the shortest of many rounds: a busy machine takes
turns, and its clock changes.

``--native`` times calls that the player in C++ makes instead, and ATen's own without a mode, by
turns: their launches are left out as well, and what Python takes to count them is included.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import itertools
import os
import statistics
import struct
import time
import types
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from provenance import cpu
from results import table
from timing import in_turns
from torch import Tensor
from torch.utils.benchmark import timer

from detmode import DeterministicMode
from detmode.cuda import allocation, device, host, native, python_player
from detmode.cuda.native import host_steps
from detmode.cuda.plan import Plan
from detmode.cuda.rows import positions
from detmode.mode import base_mode, native_log
from detmode.mode.plans import forget as forget_recorded
from detmode.mode.substitution import _valid as validated
from detmode.rules.max_unpool import launch as max_unpool
from detmode.rules.nll_loss2d import launch as nll_loss2d

GATHER, SUM, NEW = 20.0, 35.0, 10.0
"""Targets in microseconds: a gather, a sum or assignment by index, what a new shape takes more."""

aten = torch.ops.aten
_sizes: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(5))
"""Of which no call was made yet, by the name of the call."""

Arguments = tuple[Any, ...]
Make = Callable[[int], Arguments]


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


def _index(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def _doubled(height: int, width: int) -> Arguments:
    """The gradient of an image that is enlarged twice each way."""
    out = [2 * height, 2 * width]
    return _zeros(1, 1, *out), out, [1, 1, height, width], False


CALLS: dict[str, tuple[Any, Make, float]] = {
    "cumsum": (aten.cumsum.default, lambda n: (_zeros(n), 0), GATHER),
    "reflection_pad1d_backward": (
        aten.reflection_pad1d_backward.default,
        lambda n: (_zeros(1, n + 2), _zeros(1, n), [1, 1]),
        GATHER,
    ),
    "replication_pad2d_backward": (
        aten.replication_pad2d_backward.default,
        lambda n: (_zeros(1, 1, 3, n + 2), _zeros(1, 1, 1, n), [1, 1, 1, 1]),
        GATHER,
    ),
    "upsample_bilinear2d_backward": (
        aten.upsample_bilinear2d_backward.default,
        lambda n: _doubled(4 + n % 64, 4 + n // 64),
        GATHER,
    ),
    # Its tables are too long for a block, which writes those of a strip.
    "upsample_bilinear2d_backward, long rows": (
        aten.upsample_bilinear2d_backward.default,
        lambda n: _doubled(1, 1000 + n),
        GATHER,
    ),
    # Those of many elements are written in a launch of their own.
    "upsample_bilinear2d_backward, large": (
        aten.upsample_bilinear2d_backward.default,
        lambda n: _doubled(64, 1024 + n),
        GATHER,
    ),
    "_adaptive_avg_pool2d_backward": (
        aten._adaptive_avg_pool2d_backward.default,
        lambda n: (_zeros(1, 1, 1, 1), _zeros(1, 1, 1, n)),
        GATHER,
    ),
    "avg_pool3d_backward": (
        aten.avg_pool3d_backward.default,
        lambda n: (
            *(_zeros(1, 1, 1, n), _zeros(1, 2, 2, 2 * n), [2], [2], [0]),
            *(False, True, None),
        ),
        GATHER,
    ),
    "max_pool3d_with_indices_backward": (
        aten.max_pool3d_with_indices_backward.default,
        lambda n: (
            *(_zeros(1, 1, 1, n), _zeros(1, 2, 2, 2 * n), [2], [2], [0], [1], False),
            _index(1, 1, 1, n),
        ),
        GATHER,
    ),
    "fractional_max_pool2d_backward": (
        aten.fractional_max_pool2d_backward.default,
        lambda n: (_zeros(1, 1, 1, n), _zeros(1, 1, 2, 2 * n), [2, 2], [1, n], _index(1, 1, 1, n)),
        GATHER,
    ),
    "nll_loss2d_forward": (
        aten.nll_loss2d_forward.default,
        lambda n: (_zeros(1, 3, 4, n), _index(1, 4, n), None, 1, -100),
        GATHER,
    ),
    # So few rows that one launch adds them.
    "index_add": (
        aten.index_add.default,
        lambda n: (_zeros(n, 2), 0, _index(4), _zeros(4, 2)),
        SUM,
    ),
    "index_add_": (
        aten.index_add_.default,
        lambda n: (_zeros(n, 3), 0, _index(4), _zeros(4, 3)),
        SUM,
    ),
    "scatter_add": (
        aten.scatter_add.default,
        lambda n: (_zeros(n, 2), 0, _index(4, 2), _zeros(4, 2)),
        SUM,
    ),
    "scatter_reduce, amax": (
        aten.scatter_reduce.two,
        lambda n: (_zeros(4, 2), 0, _index(n, 2), _zeros(n, 2), "amax"),
        SUM,
    ),
    "index_put, accumulate": (
        aten.index_put.default,
        lambda n: (_zeros(n, 2), [_index(4)], _zeros(4, 2), True),
        SUM,
    ),
    "embedding_dense_backward": (
        aten.embedding_dense_backward.default,
        lambda n: (_zeros(4, 5), _index(4), n, -1, False),
        SUM,
    ),
    "index_put": (
        aten.index_put.default,
        lambda n: (_zeros(n, 2), [_index(4)], _zeros(4, 2)),
        SUM,
    ),
    "index_copy": (
        aten.index_copy.default,
        lambda n: (_zeros(n, 2), 0, _index(4), _zeros(4, 2)),
        SUM,
    ),
    "max_unpool2d": (
        aten.max_unpool2d.default,
        lambda n: (_zeros(1, 1, 1, n), _index(1, 1, 1, n), [2, 2 * n]),
        SUM,
    ),
    # More of them are sorted, reduced in pieces, and then the carries.
    "index_add, sorted rows": (
        aten.index_add.default,
        lambda n: (_zeros(4, 32), 0, _index(64 + n), _zeros(64 + n, 32)),
        SUM,
    ),
    "index_add, wide rows": (
        aten.index_add.default,
        lambda n: (_zeros(4, 128), 0, _index(64 + n), _zeros(64 + n, 128)),
        SUM,
    ),
    "index_add, sorted pairs": (
        aten.index_add.default,
        lambda n: (_zeros(4, 2), 0, _index(64 + n), _zeros(64 + n, 2)),
        SUM,
    ),
    # Single elements are added as integers, in four launches.
    "scatter_add, integers": (
        aten.scatter_add.default,
        lambda n: (_zeros(4, 2), 0, _index(64 + n, 2), _zeros(64 + n, 2)),
        SUM,
    ),
    "index_put, accumulate, sorted pairs": (
        aten.index_put.default,
        lambda n: (_zeros(4, 2), [_index(64 + n)], _zeros(64 + n, 2), True),
        SUM,
    ),
    "grid_sampler_2d_backward": (
        aten.grid_sampler_2d_backward.default,
        lambda n: (
            *(_zeros(1, 1, 2, n), _zeros(1, 1, 4, 4), _zeros(1, 2, n, 2)),
            *(0, 0, False, [True, True]),
        ),
        SUM,
    ),
}


_RUNTIME = abs, ctypes.memset, ctypes.memmove
"""Functions that stand for CUDA's, and do as much for memory that is not a GPU's."""


class _AsOnGpu(python_player._OnGpu):
    """Plays plans for CPU tensors as on a GPU."""

    empty = staticmethod(allocation._on_cpu)

    def __init__(self, plan: Plan, _: int) -> None:
        super().__init__(plan, 0)


@contextlib.contextmanager
def without_launches() -> Iterator[None]:
    """Let launches for CPU tensors do what they do for a GPU's, up to the driver's call."""

    def load(source: Any, entry: str, index: int) -> Any:
        kernel = object.__new__(device._Kernel)
        signature = source.signature(entry)
        kernel.function, kernel.shared = 0, 1 << 16
        kernel.put, kernel.slots = signature.put, device._Slots(signature)
        # Functions in C stand for those in C, and take the same: a launch's are eleven numbers.
        kernel.set_device, kernel.launch_kernel = abs, struct.Struct("11q").pack
        return device._kernels.setdefault((source, entry, index), kernel)

    # The same function, of a GPU that nobody has to name: a partial one would take longer.
    launch_blocks = types.FunctionType(
        device.launch_blocks.__code__, vars(device), "launch_blocks", (0,)
    )
    with (
        mock.patch.object(host, "launch_blocks", launch_blocks),
        mock.patch.dict(device._kernels),
        mock.patch.object(device, "_load", load),
        mock.patch.object(torch._C, "_cuda_getDevice", gc.get_debug, create=True),
        mock.patch.object(torch._C, "_cuda_getCurrentRawStream", abs, create=True),
        mock.patch.object(torch.cuda, "is_current_stream_capturing", bool),
        mock.patch.object(positions, "out_of_range", _nothing),
        mock.patch.object(max_unpool, "out_of_range", _nothing),
        mock.patch.object(nll_loss2d, "_check_on_host", _nothing),
        mock.patch("detmode.cuda.allocation._poison", lambda tensor: tensor),
        mock.patch.dict(python_player.WRITERS, cpu=_AsOnGpu),
        mock.patch.object(device, "runtime_functions", return_value=_RUNTIME),
    ):
        yield


def _nothing(*_: object, **__: object) -> None:
    pass


def player_on(is_on: bool) -> AbstractContextManager[object]:
    """Switch the player in C++ on or off in a block: unasked, it begins once it has been built."""
    return mock.patch.dict(os.environ, {native.VARIABLE: str(int(is_on))})


def forget_shapes(function: Any, inputs: Sequence[Arguments]) -> None:
    """Make the calls, and forget what was recorded and validated for their shapes.

    The CPU's allocator takes microseconds for sizes that it meets first: no cost of a launcher.
    """
    for args in inputs:
        function(*args)
    validated.clear()
    forget_recorded()


def seconds(function: Any, inputs: Sequence[Arguments]) -> float:
    """Seconds of this thread for a call with each input."""
    timer()  # waits for a GPU, whose queue then takes all of the launches
    start = time.thread_time()
    for args in inputs:
        function(*args)
    return (time.thread_time() - start) / len(inputs)


def mode_for(function: Any, args: Arguments, simulate: str | None) -> DeterministicMode:
    """A mode that has met the call."""
    with DeterministicMode(simulate=simulate) as mode:
        function(*args)
    assert {row.action for row in mode.records} == {"substitute"}, function
    return mode


def measure(
    name: str, rounds: int, calls: int, device: str = "cpu"
) -> tuple[float, float, float, float]:
    """The microseconds of a call by a plan, by its launcher, with shapes called once, and new ones.

    Of shapes that were called once the launcher makes the call.
    """
    function, make, _ = CALLS[name]
    on_gpu = device == "cuda"
    with torch.device(device):
        same = [make(4)] * calls
    again, launcher, known, new = [], [], [], []
    simulate = None if on_gpu else "cuda"
    with player_on(False), contextlib.nullcontext() if on_gpu else without_launches():
        with mock.patch.object(base_mode, "plans_of", _nothing):
            unplanned = mode_for(function, same[0], simulate)
        planned = mode_for(function, same[0], simulate)
        for _ in range(rounds):
            sizes = itertools.islice(_sizes[name], calls)
            with torch.device(device):
                # What is called second is as little known to the caches as what is called first.
                first, second = zip(*[(make(size), make(size)) for size in sizes])
            with planned:
                forget_shapes(function, first)
                new.append(seconds(function, first))
                seconds(function, same[:4])
                again.append(seconds(function, same))
            with unplanned:
                function(*same[0])
                known.append(seconds(function, second))
                launcher.append(seconds(function, same))
    return min(again) * 1e6, min(launcher) * 1e6, min(known) * 1e6, min(new) * 1e6


def counted_seconds(function: Any, inputs: Sequence[Arguments]) -> float:
    """As :func:`seconds`, with the time that Python takes to count what the player has made."""
    start = time.thread_time()
    for args in inputs:
        function(*args)
    native_log.count_calls()
    return (time.thread_time() - start) / len(inputs)


def measure_native(name: str, rounds: int, calls: int) -> tuple[float, float] | None:
    """The microseconds of ATen's own call and of one that the player makes; None without a plan."""
    function, make, _ = CALLS[name]
    same = [make(4)] * calls
    own, replayed = [], []
    mode = DeterministicMode(simulate="cuda", intercept="listed")
    with mode:
        counted_seconds(function, same)
    player = native.player()
    assert player is not None
    player.dm_host_step(None)
    try:
        for _ in range(rounds):
            own.append(seconds(function, same))
            with mode:
                before = player.dm_replayed()
                replayed.append(counted_seconds(function, same))
                if player.dm_replayed() - before != calls:
                    return None
    finally:
        player.dm_host_step(host_steps.make)
    return min(own) * 1e6, min(replayed) * 1e6


def compare_with_native(names: Sequence[str], turns: int, rounds: int, calls: int) -> None:
    """Print the times of calls that the player makes, over ATen's own."""
    native.build()
    times = defaultdict(list)
    with player_on(True):
        for _, name in in_turns(names, turns):
            times[name].append(measure_native(name, rounds, calls))
    lines, ratios = [], []
    for name, pairs in times.items():
        if None in pairs:
            lines.append((f"aten::{name}", "", "", "no plan"))
            continue
        own, replayed = map(min, zip(*pairs))
        ratios.append(statistics.median(mine / theirs for theirs, mine in pairs))
        lines.append((f"aten::{name}", f"{own:.2f}", f"{replayed:.2f}", f"{ratios[-1]:.2f}"))
    print(table(("us of the host", "ATen's own", "replayed", "median ratio"), lines))
    print(f"median of the ratios {statistics.median(ratios):.2f}, largest {max(ratios):.2f}")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=8, help="that each call takes")
    parser.add_argument("--rounds", type=int, default=10, help="in each turn")
    parser.add_argument("--calls", type=int, default=20, help="of other shapes each, in a round")
    parser.add_argument("--only", default="", help="calls whose names contain this")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--native", action="store_true", help="time the player in C++, on a CPU")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    torch.set_num_threads(1)
    if options.native:
        names = [name for name in CALLS if options.only in name]
        compare_with_native(names, options.turns, options.rounds, options.calls)
        return
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in CALLS if options.only in name}
    for _, name in in_turns(list(found), options.turns):
        found[name].append(measure(name, options.rounds, options.calls, options.device))
    lines = []
    for name, times in found.items():
        again, launcher, known, new = map(min, zip(*times))
        judged = *_judged(again, CALLS[name][2]), *_judged(new - known, NEW)
        lines.append((f"aten::{name}", f"{launcher:.1f}", *judged, f"{again / launcher:.2f}"))
    heads = (
        "us of the host",
        "launcher",
        "again",
        "target",
        "",
        "new shape",
        "target",
        "",
        "ratio",
    )
    print(table(heads, lines))
    print(
        f"PyTorch {torch.__version__}, {cpu()}, shortest of {options.turns * options.rounds} rounds"
    )


def _judged(microseconds: float, target: float) -> tuple[str, str, str]:
    verdict = "met" if microseconds <= target else "missed"
    return f"{microseconds:.1f}", f"{target:.0f}", verdict


if __name__ == "__main__":
    main()
