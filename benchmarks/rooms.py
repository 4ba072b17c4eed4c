"""Every room of the rule table beside ATen, what a call costs the host, and whole training steps.

Prints tables and writes them with their provenance as JSON into ``benchmarks/results/``, after each
room, so that what is cut off is not lost. Bits and accuracy are checked before anything is timed.
Without a GPU the samples of the tests run on the host runner: that shows that the benchmark works,
and is no measurement of a GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import host_cost
import models
import results
import sides
import tables
import whole_steps
from provenance import provenance
from timing import Clock, clock, copy_bandwidth

from detmode import cuda
from detmode.rules import rooms
from detmode.verify.cases import name_of

PARTS = ("operators", "host", "steps")
DTYPES = {name_of(dtype): dtype for dtype in sides.DTYPES}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    found.add_argument("--part", action="append", choices=PARTS, help="only this; repeatable")
    found.add_argument(
        "--room", action="append", choices=list(rooms()), metavar="ROOM", help="repeatable"
    )
    found.add_argument("--dtype", action="append", choices=list(DTYPES), help="repeatable")
    found.add_argument("--model", action="append", choices=list(models.MODELS), help="repeatable")
    found.add_argument("--rounds", type=int, default=20, help="how often each side is timed")
    found.add_argument("--calls", type=int, default=1000, help="of the host, in each round")
    found.add_argument("--graph", action="store_true", help="steps also captured in a CUDA graph")
    found.add_argument("--output", type=Path, default=results.FOLDER, help="folder of the JSON")
    found.add_argument("--plot", type=Path, help="draw detmode over ATen; needs matplotlib")
    found.add_argument("--commit", help="of detmode, in a copy without its repository")
    return found


def measure(options: argparse.Namespace, time: Clock) -> results.Results:
    """Measure what is asked for, written after each room and model."""
    on_gpu = time.device.type == "cuda"
    bandwidth = copy_bandwidth(time, 1 << 30 if on_gpu else 1 << 22, options.rounds)
    found = results.Results(provenance(options.commit), bandwidth, options.rounds)
    parts = options.part or PARTS
    if "operators" in parts:
        dtypes = [DTYPES[name] for name in options.dtype or DTYPES]
        sizes = "bench" if on_gpu else "tests"
        work = sides.workloads(options.room or (), dtypes, sizes=sizes)
        for room, group in groupby(work, lambda workload: workload.case.room):
            _say(room)
            for workload in group:
                found.rows.append(sides.measure(workload, time, options.rounds, bandwidth))
            found.write(options.output)
    if "host" in parts:
        _say("host")
        found.host += host_cost.host_cost(options.rounds, options.calls)
    if "steps" in parts:
        for name in options.model or models.MODELS:
            _say(name)
            found.steps.append(_step(name, time, options, tiny=not on_gpu))
            found.write(options.output)
    return found


def _step(name: str, time: Clock, options: argparse.Namespace, *, tiny: bool) -> whole_steps.Step:
    try:
        return whole_steps.measure(name, time, options.rounds, tiny=tiny, graph=options.graph)
    except Exception as error:  # out of memory, say: the other models are measured still
        text = str(error).partition("\n")[0]
        return whole_steps.Step(name, f"{type(error).__name__}: {text}", {})


def _say(what: str) -> None:
    print(f"{what} ...", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    # Read when CUDA starts; without it PyTorch's flag refuses matrix products.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    time = clock()
    reason = cuda.unavailable("cuda" if time.device.type == "cuda" else "cpu")
    if reason is not None:
        print(f"nothing can be timed: {reason}", file=sys.stderr)
        return 2
    found = measure(options, time)
    path = found.write(options.output)
    print(tables.printed(found))
    print(f"written to {path}")
    if options.plot is not None:
        import plots

        plots.over_aten(found, options.plot)
    return 1 if tables.failures(found) else 0


if __name__ == "__main__":
    sys.exit(main())
