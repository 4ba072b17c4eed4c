"""The host's time of whole training steps, up to their launches, which are left out.

Tiny models train on the CPU inside blocks that go on, with ``simulate="cuda"``: what a launch does
for a GPU is done, up to the driver's call. Each figure is the median, over rounds that pair the
two, of a step's time over that of a step without a mode, in which ATen's own CPU kernels run; times
are of one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from host_calls import player_on, without_launches
from models import MODELS, Make
from provenance import cpu
from results import table
from timing import in_turns
from torch import Tensor

from detmode import DeterministicMode
from detmode.cuda import allocation, native, python_player
from detmode.cuda.native import host_steps

TARGET = 1.10
NONE = "no mode"
SIDES: dict[str, dict[str, Any]] = {
    f"{intercept}, {'filled' if fill else 'unfilled'}": {
        "intercept": intercept,
        "fill_uninitialized_memory": fill,
    }
    for intercept in ("all", "listed")
    for fill in (True, False)
}

Step = Callable[[], object]


def step_of(name: str) -> Step:
    """A step of a tiny model, on the CPU."""
    torch.manual_seed(0)
    training = MODELS[name](Make(torch.device("cpu"), tiny=True))
    optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        training.loss().backward()
        optimizer.step()

    return step


def seconds(around: AbstractContextManager[Any], step: Step, steps: int) -> float:
    """Seconds of this thread for a step in a block that has taken four before."""
    with around:
        for _ in range(4):
            step()
        start = time.thread_time()
        for _ in range(steps):
            step()
        return (time.thread_time() - start) / steps


def zeroed(tensor: Tensor) -> Tensor:
    """The tensor with zeros: what lies in memory may be denormals, with which ATen takes longer."""
    ctypes.memset(tensor.data_ptr(), 0, tensor.untyped_storage().nbytes())
    return tensor


@contextlib.contextmanager
def without_steps_on_the_host() -> Iterator[None]:
    """Leave out what the player in C++ hands to Python on a CPU, as launches are left out."""
    player = native.player() if native.is_wanted() else None
    if player is None:
        yield
        return
    player.dm_host_step(None)
    try:
        yield
    finally:
        player.dm_host_step(host_steps.make)


def measure(name: str, rounds: int, steps: int, warn_only: bool) -> dict[str, tuple[float, float]]:
    """By side the shortest step in microseconds, and the median ratio to a step without a mode."""
    step = step_of(name)
    around: dict[str, AbstractContextManager[Any]] = {NONE: contextlib.nullcontext()}
    for side, options in SIDES.items():
        around[side] = DeterministicMode(simulate="cuda", warn_only=warn_only, **options)
    times: dict[str, list[float]] = {side: [] for side in around}
    with (
        without_launches(),
        without_steps_on_the_host(),
        mock.patch.object(allocation, "_poison", zeroed),
        mock.patch.object(python_player.WRITERS["cpu"], "empty", staticmethod(allocation.on_cpu)),
    ):
        for _, side in in_turns(list(around), rounds):
            gc.collect()
            gc.disable()
            times[side].append(seconds(around[side], step, steps))
            gc.enable()
    return {
        side: (
            min(times[side]) * 1e6,
            statistics.median(ours / none for none, ours in zip(times[NONE], times[side])),
        )
        for side in around
    }


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="in which each side is timed")
    parser.add_argument("--steps", type=int, default=10, help="in each round")
    parser.add_argument("--only", default="", help="models whose names contain this")
    parser.add_argument("--native", action="store_true", help="with the player in C++")
    parser.add_argument("--warn-only", action="store_true", help="in the mode that only warns")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    torch.set_num_threads(1)
    lines = []
    with player_on(options.native):
        if options.native:
            native.build()
            with DeterministicMode(intercept="listed"):
                pass  # the first block would hand steps to Python
        for name in MODELS:
            if options.only in name:
                sides = measure(name, options.rounds, options.steps, options.warn_only)
                figures = [f"{ratio:.2f}" for side, (_, ratio) in sides.items() if side != NONE]
                lines.append((name, f"{sides[NONE][0]:.0f}", *figures))
    print(table(("", f"{NONE}, us", *SIDES), lines))
    print(f"target {TARGET:.2f}; PyTorch {torch.__version__}, {cpu()}, {options.rounds} rounds")


if __name__ == "__main__":
    main()
