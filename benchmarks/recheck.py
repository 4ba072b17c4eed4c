"""Cost of ``recheck``: training steps with and without it, paired in one process, on the CPU.

Sampled calls are too few to be timed in a step, so that the cost at a rate is put together from two
others, each a median of paired rounds: that of counting a call, by a mode which samples none, and
that of making all calls of a step twice. The rounds take turns, and are timed by the CPU time of
this process, which other work on the machine disturbs less than the clock on the wall.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

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
NEVER, ALWAYS = 1e-8, 1 - 1e-8
"""Rates at which none and all of these calls are sampled, and gaps are drawn as at others."""
SHORT = 20
"""Rounds of counting for one of a step; short ones, since what disturbs a round is left out."""
SMALL_CALLS = 1000
HEADS = ("step", "calls", "ms", "us to make a call twice", f"at {RATE}", "")


@dataclass(frozen=True)
class Cost:
    """The medians of one step.

    Args:
        seconds: of the step under the mode, without recheck.
        calls: the calls of the step.
        counting: the seconds that counting adds to a call.
        twice: the seconds that making it twice adds to a call.
    """

    seconds: float
    calls: int
    counting: float
    twice: float

    @property
    def share(self) -> float:
        """The share of the step that ``recheck=RATE`` adds."""
        return self.calls * (self.counting + RATE * self.twice) / self.seconds


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


def paired(
    run: Callable[[], object], rate: float, rounds: int, runs: int
) -> tuple[float, float, int]:
    """Time ``run`` under the mode without recheck and at a rate.

    Returns:
        The seconds without, those that recheck adds, and the number of calls.
    """
    modes = {"without": DeterministicMode(), "with": DeterministicMode(recheck=rate)}
    times: dict[str, list[float]] = {name: [] for name in modes}
    for number, name in in_turns(list(modes), rounds + 1):
        with modes[name]:
            begin = time.process_time()
            for _ in range(runs):
                run()
            if number:  # the first round warms up
                times[name].append((time.process_time() - begin) / runs)
    added = statistics.median(one - other for one, other in zip(times["with"], times["without"]))
    calls = modes["with"].report().head["recheck"]["calls"]
    return statistics.median(times["without"]), added, calls // (runs * (rounds + 1))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=2, help="in each round")
    parser.add_argument("--quick", action="store_true", help="a tiny transformer alone")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    x, neg = torch.ones(4), torch.ops.aten.neg.default
    _, counting, _ = paired(partial(neg, x), NEVER, SHORT * options.rounds, SMALL_CALLS)
    steps = {"tiny": encoder_step(tiny=True)}
    if not options.quick:
        steps = {
            "transformer, width 64, 64 words": transformer_step(),
            "transformer, width 256, 512 words": encoder_step(),
        }
    rows = []
    for name, step in steps.items():
        seconds, added, calls = paired(step, ALWAYS, options.rounds, options.steps)
        cost = Cost(seconds, calls, counting, added / calls)
        rows.append(
            (
                *(name, calls, f"{cost.seconds * 1e3:.1f}", f"{cost.twice * 1e6:.0f}"),
                *(f"{cost.share:.2%}", "met" if cost.share <= TARGET else "missed"),
            )
        )
    print(tabulate(rows, headers=HEADS, disable_numparse=True))
    print(f"counting a call: {counting * 1e9:.0f} ns")
    print(f"PyTorch {torch.__version__}, {cpu()}, one thread, {options.rounds} rounds, CPU time")


if __name__ == "__main__":
    main()
