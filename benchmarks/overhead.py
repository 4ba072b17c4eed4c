"""Cost of interception: one small call under several modes, paired in one process.

Each round times every mode on the same call, in turning order; the ratio of a mode is the median
over the rounds of its time over that of an empty TorchDispatchMode in the same round.
"""

import argparse
import contextlib
import itertools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from provenance import cpu
from tabulate import tabulate
from timing import in_turns
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from detmode import RUN_TO_RUN, DeterministicMode, Native, Rule, default_rules, record

TARGETS = {"DeterministicMode, unlisted": 1.06, "DeterministicMode, native": 2.50}
EMPTY = "empty TorchDispatchMode"

Modes = dict[str, Callable[[], AbstractContextManager[Any]]]


class EmptyMode(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **kwargs) if kwargs else func(*args)


def modes(folder: Path) -> Modes:
    """Blocks that a call may run in; recordings go into the folder."""
    numbers = itertools.count()
    native = default_rules() + [
        Rule(
            op="aten::neg", action=Native(), guarantee=RUN_TO_RUN, because="so that it is recorded"
        )
    ]
    found: Modes = {
        "no mode": contextlib.nullcontext,
        EMPTY: EmptyMode,
        "DeterministicMode, unlisted": DeterministicMode,
        "DeterministicMode, native": lambda: DeterministicMode(rules=native),
        "detmode.record": lambda: record(folder / str(next(numbers))),
        "FlopCounterMode": lambda: FlopCounterMode(display=False),
    }
    with contextlib.suppress(ImportError):  # PyTorch 2.9 and newer
        from torch.utils._debug_mode import DebugMode

        found["DebugMode"] = DebugMode
    return found


def measure(found: Modes, rounds: int, calls: int) -> dict[str, list[float]]:
    """Seconds of a call by mode, one figure for each batch of calls."""
    timer = Timer("neg(x)", globals={"neg": torch.ops.aten.neg.default, "x": torch.ones(4)})
    times: dict[str, list[float]] = {name: [] for name in found}
    for _, name in in_turns(list(found), rounds):
        with found[name]():
            times[name].append(timer.timeit(calls).median)
    return times


def summary(mine: list[float], empty: list[float]) -> tuple[float, float]:
    """Microseconds a call, and how many times those of the empty mode in the same round."""
    ratio = statistics.median(own / other for own, other in zip(mine, empty))
    return statistics.median(mine) * 1e6, ratio


def import_seconds(processes: int) -> list[float]:
    """Time the first use of a name of detmode in processes that have imported torch."""
    script = (
        "import time, torch; start = time.perf_counter(); from detmode import DeterministicMode; "
        "print(time.perf_counter() - start)"
    )
    run = [sys.executable, "-c", script]
    return [float(subprocess.check_output(run)) for _ in range(processes)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    # A recording writes after 512 calls.
    parser.add_argument("--calls", type=int, default=1024, help="in each round")
    parser.add_argument("--imports", type=int, default=9, help="processes that import detmode")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = measure(modes(Path(folder)), options.rounds, options.calls)
    rows = []
    for name, mine in times.items():
        microseconds, ratio = summary(mine, times[EMPTY])
        target = TARGETS.get(name)
        verdict = "" if target is None else ("met" if ratio <= target else "missed")
        goal = f"{target:.2f}" if target else ""
        rows.append((name, f"{microseconds:.2f}", f"{ratio:.2f}", goal, verdict))
    heads = ("aten::neg of 4 elements under", "us a call", "over empty", "target", "")
    print(tabulate(rows, headers=heads, disable_numparse=True, colalign=("left", *["right"] * 3)))
    rounds = f"{options.rounds} rounds of {options.calls} calls, medians"
    print(f"PyTorch {torch.__version__}, {cpu()}, {rounds}")
    if options.imports:
        added = statistics.median(import_seconds(options.imports)) * 1e3
        print(
            f"detmode's first name after import torch: {added:.0f} ms, median of {options.imports}"
        )


if __name__ == "__main__":
    main()
