"""Every family of the rule table beside ATen, what a call costs the host, and whole training steps.

Prints tables and writes them with their provenance as JSON into ``benchmarks/results/``, after
each line, so that what is cut off is not lost and ``--resume`` goes on with it. What a target names
comes first, and of that the largest. Bits and accuracy are checked before anything is timed.
Without a GPU the samples of the tests run on the host runner: that shows that the benchmark works,
and is no measurement of a GPU.
"""

import argparse
import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import host_cost
import models
import results
import sides
import tables
import targets
import whole_steps
from provenance import Lines, add_options, provenance
from timing import Clock, copy_bandwidth

from detmode import cuda
from detmode.verify.cases import name_of

PARTS = ("operators", "host", "steps", "captured")
DTYPES = {name_of(dtype): dtype for dtype in sides.DTYPES}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    found.add_argument("--part", action="append", choices=PARTS, help="only this; repeatable")
    found.add_argument(
        "--family",
        action="append",
        choices=sides.timed_families(),
        metavar="FAMILY",
        help="repeatable",
    )
    found.add_argument("--dtype", action="append", choices=list(DTYPES), help="repeatable")
    found.add_argument(
        "--side",
        action="append",
        choices=sides.SIDES,
        help="timed beside detmode; repeatable; default: all",
    )
    found.add_argument("--model", action="append", choices=list(models.MODELS), help="repeatable")
    found.add_argument("--rounds", type=_rounds, default=20, help="how often each side is timed")
    found.add_argument("--calls", type=int, default=1000, help="of the host, in each round")
    found.add_argument("--plot", type=Path, help="folder of the pictures; needs matplotlib")
    add_options(found, results.FOLDER)
    return found


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"a spread needs two rounds or more, not {text}")
    return int(text)


class Benchmark:
    """Measurements that are asked for and not there yet; ``found`` takes the figures."""

    def __init__(self, found: results.Results, options: argparse.Namespace, clock: Clock) -> None:
        self.found, self.options, self.clock = found, options, clock
        self.on_gpu = clock.device.type == "cuda"

    def measure(self) -> None:
        """Measure it, written after each line, until the minutes are over."""
        pieces = self._pieces()
        lines = itertools.chain.from_iterable(lines for _, lines in pieces)
        self.found.fill(lines, sum(number for number, _ in pieces), self.options)

    def _pieces(self) -> list[tuple[int, Lines]]:
        """Batches of lines, each after their largest number: what targets name, then the others."""
        inputs = self._inputs()
        first = [self._operator(each) for each in inputs if targets.named(each)]
        rest = [self._operator(each) for each in inputs if not targets.named(each)]
        names = self.options.model or list(models.MODELS)
        others = {
            "host": (1, self._host()),
            "steps": (len(names), self._steps(names)),
            "captured": (len(names), self._captured(names)),
        }
        chosen = self.options.part or PARTS
        return [*first, *(others[part] for part in PARTS[1:] if part in chosen), *rest]

    def _inputs(self) -> list[sides.Workload]:
        if "operators" not in (self.options.part or PARTS):
            return []
        dtypes = [DTYPES[name] for name in self.options.dtype or DTYPES]
        sizes = "bench" if self.on_gpu else "tests"
        found = sides.inputs(self.options.family or (), dtypes, sizes=sizes)
        known = {row.key for row in self.found.rows}
        return targets.in_order(each for each in found if not each.keys() <= known)

    def _operator(self, each: sides.Workload) -> tuple[int, Lines]:
        return len(each.keys()), self._workloads(each)

    def _workloads(self, each: sides.Workload) -> Lines:
        def measure(workload: sides.Workload) -> None:
            rounds, chosen = self.options.rounds, self.options.side or sides.SIDES
            row = sides.measure(workload, self.clock, rounds, self.found.bandwidth, chosen)
            self.found.rows.append(row)

        known = {row.key for row in self.found.rows}
        for workload in sides.workloads(each, self.clock.device):
            if workload.row().key not in known:
                yield workload, partial(measure, workload)

    def _host(self) -> Lines:
        def measure() -> None:
            self.found.host = host_cost.host_cost(self.options.rounds, self.options.calls)

        if not self.found.host:
            yield "host", measure

    def _steps(self, names: Sequence[str]) -> Lines:
        for name in names:
            if name not in self.found.steps:
                yield name, partial(self._step, name, whole_steps.measure)

    def _captured(self, names: Sequence[str]) -> Lines:
        # After all others: a capture that fails may leave more behind than its message.
        for name in names:
            if not self._begun(name).captured:
                yield f"{name}, captured", partial(self._step, name, whole_steps.capture)

    def _begun(self, name: str) -> whole_steps.Step:
        return self.found.steps.get(name, whole_steps.Step(name, None, {}))

    def _step(self, name: str, measure: Callable[..., whole_steps.Step]) -> None:
        begun = self._begun(name)
        try:
            step = measure(begun, self.clock, self.options.rounds, tiny=not self.on_gpu)
        except Exception as error:  # out of memory, say: the other models are measured still
            text = str(error).partition("\n")[0]
            step = dataclasses.replace(begun, failure=f"{type(error).__name__}: {text}")
        self.found.steps[name] = step


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    # Read when CUDA starts; without it PyTorch's flag refuses matrix products.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    clock = Clock()
    reason = cuda.unavailable("cuda" if clock.device.type == "cuda" else "cpu")
    if reason is not None:
        print(f"nothing can be timed: {reason}", file=sys.stderr)
        return 2
    n_bytes = 1 << 30 if clock.device.type == "cuda" else 1 << 22
    bandwidth = copy_bandwidth(clock, n_bytes, options.rounds)
    found = results.Results(provenance(options.commit), bandwidth, options.rounds)
    if not found.begin(options):
        return 2
    Benchmark(found, options, clock).measure()
    path = found.write(options.output)
    print(tables.printed(found))
    print(f"written to {path}")
    if options.plot is not None:
        import plots

        plots.draw(found, options.plot)
    return 1 if tables.failures(found) else 0


if __name__ == "__main__":
    sys.exit(main())
