"""Run one input of the benchmarks under the mode: what a profiler is given to watch.

``ncu --kernel-name regex:scan_row python tools/profile_call.py scan aten::cumsum row_256m``.
Without a GPU the host runner runs it; the samples of the tests are small enough for that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from detmode import DeterministicMode, cuda
from detmode.table.samples import Sample
from detmode.verify.cases import call, samples_of

CALLS = 3


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    found.add_argument("family")
    found.add_argument("operator", help="such as aten::cumsum")
    found.add_argument("sample", help="of the benchmarks, or of the tests")
    return found


def chosen(options: argparse.Namespace) -> Sample | None:
    """The sample that is asked for."""
    samples = samples_of(options.family)
    for sample in (*samples.bench, *samples.cases):
        if (sample.op, sample.name) == (options.operator, options.sample):
            return sample
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    sample = chosen(options)
    if sample is None:
        what = f"{options.family} has no sample {options.sample!r} of {options.operator}"
        print(what, file=sys.stderr)
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
