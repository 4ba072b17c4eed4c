"""Run one input of the benchmarks under the mode: what a profiler is given to watch.

``ncu --kernel-name regex:cumsum_row python tools/profile_call.py scan aten::cumsum row_256m``.
Without a GPU the host runner runs it; the samples of the tests are small enough for that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from detmode import DeterministicMode, cuda
from detmode.verify.cases import call, samples_of

CALLS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("room")
    parser.add_argument("operator", help="such as aten::cumsum")
    parser.add_argument("sample", help="of the benchmarks, or of the tests")
    options = parser.parse_args(arguments)
    samples = samples_of(options.room)
    named = (
        sample
        for sample in (*getattr(samples, "BENCH", ()), *samples.SAMPLES)
        if (sample.op, sample.name) == (options.operator, options.sample)
    )
    sample = next(named, None)
    if sample is None:
        print(
            f"{options.room} has no sample {options.sample!r} of {options.operator}",
            file=sys.stderr,
        )
        return 2
    on_gpu = cuda.unavailable("cuda") is None
    given = sample.arguments(torch.float32, "cuda" if on_gpu else "cpu")
    for _ in range(CALLS):
        with DeterministicMode(simulate=None if on_gpu else "cuda") as mode:
            call(sample, given)
    if on_gpu:
        torch.cuda.synchronize()
    print(*sorted({f"{row.overload}: {row.action}" for row in mode.records}), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
