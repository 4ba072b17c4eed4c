"""Cost of interception: a small call, and two programs, under several modes, paired in one process.

Each round times every mode on the same code, in turning order; the ratio of a mode is the median
over the rounds of its time over that of another mode in the same round: an empty TorchDispatchMode
for the call, and none for the programs.
"""

import argparse
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from provenance import cpu
from tabulate import tabulate
from timing import in_turns
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from detmode import RUN_TO_RUN, DeterministicMode, Native, Rule, default_rules, record
from detmode.process.torch_settings import deterministic_flag

TARGETS = {"DeterministicMode, unlisted": 1.05, "DeterministicMode, native": 1.80}
PROGRAM_TARGETS = {'intercept="listed", unfilled': 1.03}
FREE, CONVOLUTION = 1.02, 1.10
"""Targets of calls that ``intercept="listed"`` does not receive, over no mode."""
EMPTY = "empty TorchDispatchMode"
NONE = "no mode"

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
        NONE: contextlib.nullcontext,
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


def program_modes() -> Modes:
    """Blocks that a program may run in; unfilled, without the filling of new memory."""
    return {
        NONE: contextlib.nullcontext,
        "PyTorch's flag": lambda: deterministic_flag(True),
        EMPTY: EmptyMode,
        'intercept="all"': DeterministicMode,
        'intercept="listed"': lambda: DeterministicMode(intercept="listed"),
        'intercept="listed", unfilled': lambda: DeterministicMode(
            intercept="listed", fill_uninitialized_memory=False
        ),
    }


def tiny_operators(device: str = "cpu") -> None:
    """Call a thousand operators on four elements."""
    x = torch.ones(4, device=device)
    for _ in range(250):
        x = ((x + 1) * 0.5).neg().abs()


def transformer_step(device: str = "cpu") -> Callable[[], None]:
    """A training step of a small transformer, with the embedding of its words."""
    torch.manual_seed(0)
    words, head = nn.Embedding(100, 64), nn.Linear(64, 100)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model = nn.Sequential(words, nn.TransformerEncoder(layer, 2), head).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    text = torch.randint(100, (4, 16)).to(device)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(text).flatten(0, 1), text.flatten()).backward()
        optimizer.step()

    return step


def small_call(device: str = "cpu") -> Timer:
    """Of one operator on four elements."""
    x = torch.ones(4, device=device)
    return Timer("neg(x)", globals={"neg": torch.ops.aten.neg.default, "x": x})


def free_calls(device: str = "cpu") -> dict[str, tuple[Callable[[], Any], float]]:
    """Calls that ``intercept="listed"`` does not receive, by what they are, with their targets."""
    x, convolution = torch.ones(1, 3, 8, 8, device=device), nn.Conv2d(3, 4, 3).to(device)
    matrix = torch.ones(4, 4, device=device)
    return {
        "t()": (matrix.t, FREE),
        "x[0]": (lambda: matrix[0], FREE),
        "expand": (lambda: matrix.expand(2, 4, 4), FREE),
        "transpose": (lambda: matrix.transpose(0, 1), FREE),
        "neg": (matrix.neg, FREE),
        "mm": (lambda: matrix @ matrix, FREE),
        "a convolution": (lambda: convolution(x), CONVOLUTION),
        "a convolution and its backward": (lambda: convolution(x).sum().backward(), CONVOLUTION),
    }


def paired(call: Callable[[], Any], mode: DeterministicMode, rounds: int, calls: int) -> float:
    """The thread's time of a call in the mode's block, over that without a mode.

    Each round times both, by turns; the ratio is the median over the rounds.
    """

    def seconds() -> float:
        call()  # what is looked up at a first call
        start = time.thread_time()
        for _ in range(calls):
            call()
        return time.thread_time() - start

    ratios = []
    for _ in range(rounds):
        without = seconds()
        with mode:
            ratios.append(seconds() / without)
    return statistics.median(ratios)


def entering(mode: DeterministicMode, rounds: int) -> float:
    """Seconds of the thread for an empty block of a mode that was entered before, the median."""
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        with mode:
            pass
        times.append(time.thread_time() - start)
    return statistics.median(times)


def show_free(rounds: int, calls: int, device: str) -> None:
    """Print what calls take under ``intercept="listed"`` that it does not receive.

    Without a GPU its kernels are registered for the CPU's tensors, as they are for a GPU's there.
    """
    simulate = None if device == "cuda" else "cuda"
    mode = DeterministicMode(intercept="listed", fill_uninitialized_memory=False, simulate=simulate)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a thread's time is that of one
    rows = []
    for name, (call, target) in free_calls(device).items():
        ratio = paired(call, mode, rounds, calls)
        verdict = "met" if ratio <= target else "missed"
        rows.append((name, f"{ratio:.2f}", f"{target:.2f}", verdict))
    torch.set_num_threads(threads)
    heads = ('under intercept="listed"', "over no mode", "target", "")
    print(tabulate(rows, headers=heads, disable_numparse=True, colalign=("left", *["right"] * 2)))
    print(f'entering and leaving intercept="listed" again: {entering(mode, rounds) * 1e3:.1f} ms')


def measure(
    found: Modes, rounds: int, calls: int, timer: Timer | None = None
) -> dict[str, list[float]]:
    """Seconds of a call by mode, of a small one by default: one figure for each batch of calls."""
    timer = timer or small_call()
    times: dict[str, list[float]] = {name: [] for name in found}
    for _, name in in_turns(list(found), rounds):
        with found[name]():
            times[name].append(timer.timeit(calls).median)
    return times


def summary(mine: list[float], others: list[float]) -> tuple[float, float]:
    """Microseconds a call, and how many times those of another mode in the same round."""
    ratio = statistics.median(own / other for own, other in zip(mine, others))
    return statistics.median(mine) * 1e6, ratio


def show(what: str, times: dict[str, list[float]], base: str, targets: dict[str, float]) -> None:
    """Print the microseconds of each mode, and the ratio to those of ``base``."""
    rows = []
    for name, mine in times.items():
        microseconds, ratio = summary(mine, times[base])
        target = targets.get(name)
        verdict = "" if target is None else ("met" if ratio <= target else "missed")
        goal = f"{target:.2f}" if target else ""
        rows.append((name, f"{microseconds:.2f}", f"{ratio:.2f}", goal, verdict))
    heads = (f"{what} under", "us", f"over {'empty' if base is EMPTY else base}", "target", "")
    print(tabulate(rows, headers=heads, disable_numparse=True, colalign=("left", *["right"] * 3)))


def import_seconds(processes: int) -> list[float]:
    """Time the first use of a name of detmode in processes that have imported torch."""
    script = (
        "import time, torch; start = time.perf_counter(); from detmode import DeterministicMode; "
        "print(time.perf_counter() - start)"
    )
    run = [sys.executable, "-c", script]
    return [float(subprocess.check_output(run)) for _ in range(processes)]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    # A recording writes after 512 calls.
    parser.add_argument("--calls", type=int, default=1024, help="in each round")
    parser.add_argument("--runs", type=int, default=20, help="of a program in each round")
    parser.add_argument("--imports", type=int, default=9, help="processes that import detmode")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    device = options.device
    # Read when CUDA starts; without it PyTorch's flag refuses matrix products.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with tempfile.TemporaryDirectory() as folder:
        times = measure(modes(Path(folder)), options.rounds, options.calls, small_call(device))
    show("aten::neg of 4 elements", times, EMPTY, TARGETS)
    programs = {
        "1,000 tiny operators": partial(tiny_operators, device),
        "a transformer's step": transformer_step(device),
    }
    for what, run in programs.items():
        timer = Timer("run()", globals={"run": run})
        times = measure(program_modes(), options.rounds, options.runs, timer)
        show(what, times, NONE, PROGRAM_TARGETS)
    show_free(options.rounds, options.calls, device)
    rounds = f"{options.rounds} rounds of {options.calls} calls, medians"
    print(f"PyTorch {torch.__version__}, {cpu()}, {rounds}")
    if options.imports:
        added = statistics.median(import_seconds(options.imports)) * 1e3
        print(
            f"detmode's first name after import torch: {added:.0f} ms, median of {options.imports}"
        )


if __name__ == "__main__":
    main()
