"""Variation of ATen's CUDA kernels: each operator on the same inputs again and again.

Runs ATen alone, with PyTorch's flag off, on the inputs of the benchmarks and on those of the tests
that seek collisions; on an idle GPU, then beside matrix products on a second stream. Results are
told apart by detmode's digest, on the GPU. Writes what it counts with its provenance as
``benchmarks/results/variation/<GPU>-<date>.json``, after each input, so that what is cut off is not
lost and ``--resume`` goes on with it; the pages of ``docs/rules/`` say it in a line.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from provenance import ROOT, Measured, add_options, provenance
from sides import DeviceMaker

from detmode import cuda
from detmode.bits.digest import add_digest
from detmode.process.torch_settings import deterministic_flag
from detmode.rules import families
from detmode.table.rule_table import resolve
from detmode.verify.cases import Case, call, cases, name_of, samples_of, tensors_of

FOLDER = ROOT / "benchmarks" / "results" / "variation"
DTYPES = {name_of(dtype): dtype for dtype in (torch.float32, torch.float16, torch.bfloat16)}
FEWEST = 10
NOT_MEASURED = "Whether ATen's kernel really varies is not yet measured."


@dataclass(frozen=True)
class Line:
    """One input of one operator.

    Args:
        family: of the operator's rule.
        op: the overload.
        sample: the name of the input.
        dtype: of the input.
        repeats: the number of times it ran, idle and busy each; 0 where ATen does not run it.
        idle: the number of different results of an idle GPU.
        busy: the number of those of a GPU that another stream kept busy.
        note: the reason why ATen does not run it.
    """

    family: str
    op: str
    sample: str
    dtype: str
    repeats: int = 0
    idle: int = 0
    busy: int = 0
    note: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """The names that tell it from other lines."""
        return self.family, self.op, self.sample, self.dtype


@dataclass
class Results(Measured):
    """Results of one GPU.

    Args:
        provenance: as in :class:`Measured`.
        lines: the inputs so far.
    """

    lines: list[Line] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what :meth:`write` wrote."""
        found = json.loads(path.read_text(encoding="utf-8"))
        return cls(found["provenance"], [Line(**line) for line in found["lines"]])


def inputs(names: Sequence[str], dtypes: Sequence[torch.dtype]) -> Iterator[Case]:
    """The inputs of the families with substitutes, or of some of them: the small ones first."""
    for family in names or families():
        colliding = [case for case in cases(family) if "collisions" in case.sample.covers]
        large = [
            Case(family, sample, dtype, None)
            for sample in samples_of(family).bench
            for dtype in sample.dtypes
        ]
        yield from (case for case in (*colliding, *large) if case.dtype in dtypes)


def blank(case: Case) -> Line:
    """The line of an input that has not been run."""
    return Line(case.family, case.sample.op, case.sample.name, name_of(case.dtype))


class Load:
    """Matrix products on a second stream, as many as keep it busy."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._matrix = torch.ones(2048, 2048, device="cuda")
        self._stream.wait_stream(torch.cuda.current_stream())

    def __call__(self) -> None:
        if self._stream.query():
            with torch.cuda.stream(self._stream):
                for _ in range(20):
                    torch.mm(self._matrix, self._matrix)


def count_results(
    run: Callable[[], Any], repeats: int, device: str, before: Callable[[], object] = bool
) -> int:
    """Count the different results of the repeats.

    Args:
        run: gives a tensor or several, of the same shapes each time.
        repeats: the number of times it runs.
        device: the tensors' device.
        before: is called before each run.
    """
    digests = []
    for _ in range(repeats):
        before()
        results = tensors_of(run())
        sums = torch.zeros(len(results), 2, dtype=torch.int64, device=device)
        for own, result in zip(sums, results):
            add_digest(own, result)
        digests.append(sums)
    return len(torch.stack(digests).cpu().flatten(1).unique(dim=0))


def measure(case: Case, repeats: int, seconds: float, device: str = "cuda") -> Line:
    """Repeat ATen on one input.

    Args:
        case: the input.
        repeats: the number of times, idle and busy each.
        seconds: fewer repeats, but :data:`FEWEST`, where they would take longer than this.
        device: ``"cuda"``, or ``"cpu"``, where nothing else keeps it busy.
    """
    line = blank(case)
    func = resolve(case.sample.op)
    writes = func is not None and func._schema.is_mutable

    def run() -> Any:
        own = copy.deepcopy(arguments) if writes else arguments
        with deterministic_flag(False):
            return call(case.sample, own)

    try:
        arguments = case.sample.make(DeviceMaker(case.dtype, torch.device(device)))
        count_results(run, 1, device)
        start = time.perf_counter()
        count_results(run, 1, device)
        own = max(time.perf_counter() - start, 1e-9)
    except (LookupError, RuntimeError) as error:  # no operator, no kernel, no memory
        return dataclasses.replace(line, note=str(error).partition("\n")[0])
    fitting = max(min(repeats, int(seconds / own)), min(repeats, FEWEST))
    load = Load() if device == "cuda" else bool
    return dataclasses.replace(
        line,
        repeats=fitting,
        idle=count_results(run, fitting, device),
        busy=count_results(run, fitting, device, load),
    )


def documented(family: str, found: Sequence[Results]) -> str:
    """Sentences on a family, one for each GPU."""
    sentences = []
    for results in found:
        ran = [line for line in results.lines if line.family == family and line.repeats]
        if not ran:
            continue
        varied = [line for line in ran if max(line.idle, line.busy) > 1]
        most = max(varied or ran, key=lambda line: max(line.idle, line.busy))
        text = f"ATen on {results.provenance['gpu']}: varied in {len(varied)} of {len(ran)} inputs"
        if varied:
            text += f", up to {max(most.idle, most.busy)} results in {most.repeats} repeats"
        else:
            text += f" in {most.repeats} repeats"
        sentences.append(f"{text} (PyTorch {results.provenance['torch']}).")
    return "\n".join(sentences) or NOT_MEASURED


def committed(folder: Path = FOLDER) -> list[Results]:
    """The results in a folder, of each GPU the last ones."""
    found = [Results.read(path) for path in sorted(folder.glob("*.json"))]
    last = {results.provenance["gpu"]: results for results in found}
    return list(last.values())


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    found.add_argument("--family", action="append", choices=list(families()), metavar="FAMILY")
    found.add_argument("--dtype", action="append", choices=list(DTYPES), help="default: float32")
    found.add_argument("--repeats", type=int, default=100, help="idle and busy each; default: 100")
    found.add_argument("--seconds", type=float, default=5.0, help="of one input; default: 5")
    add_options(found, FOLDER)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    reason = cuda.unavailable("cuda")
    if reason is not None:
        print(f"ATen's CUDA kernels cannot be repeated: {reason}", file=sys.stderr)
        return 2
    found = Results(provenance(options.commit))
    if not found.begin(options):
        return 2
    known = {line.key for line in found.lines}
    dtypes = [DTYPES[name] for name in options.dtype or ["float32"]]

    def repeat(case: Case) -> None:
        found.lines.append(measure(case, options.repeats, options.seconds))

    missing = [
        each for each in inputs(options.family or (), dtypes) if blank(each).key not in known
    ]
    found.fill(((each, partial(repeat, each)) for each in missing), len(missing), options)
    for family in dict.fromkeys(line.family for line in found.lines):
        print(f"{family}: {documented(family, [found])}")
    print(f"written to {found.write(options.output)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
