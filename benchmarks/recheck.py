"""Cost of ``recheck``: training steps with and without it, paired in one process, on the CPU.

Each round times the steps of every mode in turning order, by the CPU time of this process, which
other work on the machine disturbs less than the clock on the wall. Calls made twice at random would
be too few in a round to be timed, so the cost at a rate is put together from what is: a mode that
counts its calls and samples none, and one that makes all of them twice.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from compiled import Encoder
from overhead import transformer_step
from provenance import cpu
from tabulate import tabulate
from timing import in_turns

from detmode import DeterministicMode

RATE = 0.001
TARGET = 0.01
"""The share of a step that ``recheck=RATE`` may add."""
NEVER, ALWAYS = 1e-15, 1.0
HEADS = ("step", "calls", "ms", "ns to count a call", "us to make one twice", f"at {RATE}", "")


@dataclass(frozen=True)
class Cost:
    """The medians of one step.

    Args:
        seconds: of the step without recheck, under the mode.
        calls: the calls of the step.
        counting: the seconds that counting adds to the step.
        twice: the seconds that making all of its calls twice adds.
    """

    seconds: float
    calls: int
    counting: float
    twice: float

    @property
    def share(self) -> float:
        """The share of the step that ``recheck=RATE`` adds."""
        return (self.counting + RATE * self.twice) / self.seconds


def encoder_step(tiny: bool = False) -> Callable[[], None]:
    """A training step of a transformer on 512 words, with AdamW."""
    torch.manual_seed(0)
    words, width, depth, shape = (30, 16, 1, (2, 4)) if tiny else (1000, 256, 2, (8, 64))
    model = Encoder(words, width, depth)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens, targets = torch.randint(words, (2, *shape))

    def step() -> None:
        optimizer.zero_grad()
        model(tokens, targets).backward()
        optimizer.step()

    return step


def measure(step: Callable[[], None], rounds: int, steps: int) -> Cost:
    """Time a step under the mode at each rate."""
    modes = {rate: DeterministicMode(recheck=rate) for rate in (0.0, NEVER, ALWAYS)}
    times: dict[float, list[float]] = {rate: [] for rate in modes}
    for number, name in in_turns([str(rate) for rate in modes], rounds + 1):
        rate = float(name)
        with modes[rate]:
            begin = time.process_time()
            for _ in range(steps):
                step()
            if number:  # the first round warms up
                times[rate].append((time.process_time() - begin) / steps)
    head = modes[NEVER].report().head["recheck"]
    plain, counting, twice = times.values()
    added = [
        statistics.median(one - other for one, other in zip(each, plain))
        for each in (counting, twice)
    ]
    calls = int(head["calls"]) // (steps * (rounds + 1))
    return Cost(statistics.median(plain), calls, max(added[0], 0.0), added[1])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=4, help="in each round")
    parser.add_argument("--quick", action="store_true", help="a tiny transformer alone")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    steps = (
        {"tiny": encoder_step(tiny=True)}
        if options.quick
        else {
            "transformer, width 64, 64 words": transformer_step(),
            "transformer, width 256, 512 words": encoder_step(),
        }
    )
    rows = []
    for name, step in steps.items():
        cost = measure(step, options.rounds, options.steps)
        rows.append(
            (
                name,
                cost.calls,
                f"{cost.seconds * 1e3:.1f}",
                f"{cost.counting / cost.calls * 1e9:.0f}",
                f"{cost.twice / cost.calls * 1e6:.0f}",
                f"{cost.share:.2%}",
                "met" if cost.share <= TARGET else "missed",
            )
        )
    print(tabulate(rows, headers=HEADS, disable_numparse=True))
    print(f"PyTorch {torch.__version__}, {cpu()}, one thread, {options.rounds} rounds, CPU time")


if __name__ == "__main__":
    main()
