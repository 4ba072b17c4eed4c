"""Every room of the rule table beside ATen, what a call costs the host, and whole training steps.

Prints tables and writes them with their provenance as JSON into ``benchmarks/results/``, after each
line, so that what is cut off is not lost and ``--resume`` goes on with it. Bits and accuracy are
checked before anything is timed. Without a GPU the samples of the tests run on the host runner:
that shows that the benchmark works, and is no measurement of a GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
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
from detmode.verify.cases import name_of

PARTS = ("operators", "host", "steps")
DTYPES = {name_of(dtype): dtype for dtype in sides.DTYPES}


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    found.add_argument("--part", action="append", choices=PARTS, help="only this; repeatable")
    found.add_argument(
        "--room", action="append", choices=sides.timed_rooms(), metavar="ROOM", help="repeatable"
    )
    found.add_argument("--dtype", action="append", choices=list(DTYPES), help="repeatable")
    found.add_argument("--model", action="append", choices=list(models.MODELS), help="repeatable")
    found.add_argument("--rounds", type=_rounds, default=20, help="how often each side is timed")
    found.add_argument("--calls", type=int, default=1000, help="of the host, in each round")
    found.add_argument("--graph", action="store_true", help="steps also captured in a CUDA graph")
    found.add_argument("--output", type=Path, default=results.FOLDER, help="folder of the JSON")
    found.add_argument(
        "--resume", action="store_true", help="keep what the file has, measure the rest"
    )
    found.add_argument("--plot", type=Path, help="draw detmode over ATen; needs matplotlib")
    found.add_argument("--commit", help="of detmode, in a copy without its repository")
    return found


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"a spread needs two rounds or more, not {text}")
    return int(text)


def begin(options: argparse.Namespace, time: Clock) -> results.Results:
    """Results with nothing in them yet, or with what is to be resumed.

    Raises:
        ValueError: what is there was measured with or on something else.
    """
    n_bytes = 1 << 30 if time.device.type == "cuda" else 1 << 22
    bandwidth = copy_bandwidth(time, n_bytes, options.rounds)
    found = results.Results(provenance(options.commit), bandwidth, options.rounds)
    if options.resume:
        found.resume(options.output)
    return found


def measure(found: results.Results, options: argparse.Namespace, time: Clock) -> None:
    """Measure what is asked for and not there yet, written after each line."""
    on_gpu = time.device.type == "cuda"
    parts = options.part or PARTS
    if "operators" in parts:
        dtypes = [DTYPES[name] for name in options.dtype or DTYPES]
        sizes = "bench" if on_gpu else "tests"
        known = {row.key for row in found.rows}
        for workload in sides.workloads(options.room or (), dtypes, sizes=sizes):
            if workload.row().key not in known:
                _say(workload)
                found.rows.append(sides.measure(workload, time, options.rounds, found.bandwidth))
                found.write(options.output)
    if "host" in parts and not found.host:
        _say("host")
        found.host += host_cost.host_cost(options.rounds, options.calls)
        found.write(options.output)
    if "steps" in parts:
        measured = {step.model for step in found.steps}
        for name in options.model or models.MODELS:
            if name not in measured:
                _say(name)
                found.steps.append(_step(name, time, options, tiny=not on_gpu))
                found.write(options.output)


def _step(name: str, time: Clock, options: argparse.Namespace, *, tiny: bool) -> whole_steps.Step:
    try:
        return whole_steps.measure(name, time, options.rounds, tiny=tiny, graph=options.graph)
    except Exception as error:  # out of memory, say: the other models are measured still
        text = str(error).partition("\n")[0]
        return whole_steps.Step(name, f"{type(error).__name__}: {text}", {})


def _say(what: object) -> None:
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
    try:
        found = begin(options, time)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    measure(found, options, time)
    path = found.write(options.output)
    print(tables.printed(found))
    print(f"written to {path}")
    if options.plot is not None:
        import plots

        plots.over_aten(found, options.plot)
    return 1 if tables.failures(found) else 0


if __name__ == "__main__":
    sys.exit(main())
