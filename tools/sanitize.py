"""Run every CUDA kernel once on a GPU under NVIDIA's compute-sanitizer.

For each entry of each source that a substitute launches, the smallest sample that reaches it; which
one that is, the host runner says. compute-sanitizer comes with the CUDA toolkit. ``--list`` needs
no GPU and starts nothing. With ``--as-large`` samples reach what otherwise only large inputs do.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import as_large
import torch

from detmode import DeterministicMode, cuda
from detmode.cuda import Source, host
from detmode.rules import families
from detmode.verify.cases import Case, call, cases, run_substituted

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FAULT = 86
"""The exit code of a program in which a tool found something."""
ENVIRONMENT = {
    # Each tensor is an allocation of its own: in a block of the caching allocator an access beyond
    # a tensor is none beyond the block, and what another tensor left there counts as written.
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    # A fault is found while the sample is running that is named above it.
    "CUDA_LAUNCH_BLOCKING": "1",
}

Entry = tuple[str, str]


@contextmanager
def launched() -> Iterator[set[Entry]]:
    """The entries that the host runner launches inside, by file and name."""
    found: set[Entry] = set()
    launch_blocks = host.launch_blocks

    def note(source: Source, entry: str, *rest: object) -> None:
        found.add((str(source.path), entry))
        launch_blocks(source, entry, *rest)

    with mock.patch.object(host, "launch_blocks", note):
        yield found


def smallest(family: str | None = None, parts: Sequence[str] = ("",)) -> list[Case]:
    """The fewest elements first, each case that launches an entry which none before it launches.

    Args:
        family: only its cases.
        parts: of the names of the entries that count, which have one of them.
    """
    chosen, seen = [], set[Entry]()
    for case in sorted(cases(family), key=_elements):
        with launched() as entries:
            run_substituted(case.sample, case.dtype)
        entries = {each for each in entries if any(part in each[1] for part in parts)}
        if not entries <= seen:
            chosen.append(case)
            seen |= entries
    return chosen


def _elements(case: Case) -> int:
    values = case.sample.arguments(case.dtype).values()
    return sum(value.numel() for value in values if isinstance(value, torch.Tensor))


def command(tool: str, names: Sequence[str], *, as_large: bool = False) -> list[str]:
    """The command that runs the cases of these names under a tool."""
    return [
        *("compute-sanitizer", "--tool", tool, "--error-exitcode", str(FAULT)),
        # PyTorch asks the driver for functions that it may not have: no faults of a kernel.
        *("--report-api-errors", "no"),
        *(sys.executable, __file__, *(["--as-large"] * as_large), "--run", *names),
    ]


def run(names: Sequence[str]) -> None:
    """Run the cases of these names on the GPU, each once, its name before it.

    Raises:
        ValueError: there is no such case.
    """
    known = {str(case): case for case in cases()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"there is no case {unknown[0]!r}")
    for name in names:
        print(name, flush=True)
        case = known[name]
        arguments = case.sample.arguments(case.dtype, "cuda")
        # What PyTorch fills, initcheck would take for written.
        with DeterministicMode(fill_uninitialized_memory=False):
            call(case.sample, arguments)
        torch.cuda.synchronize()


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    found.add_argument("--tool", action="append", choices=TOOLS, help="repeatable; default: all")
    found.add_argument("--family", choices=list(families()), metavar="FAMILY", help="only this one")
    found.add_argument(
        "--entry", action="append", metavar="TEXT", help="only entries with this name; repeatable"
    )
    found.add_argument("--as-large", action="store_true", help="take the ways of large inputs")
    found.add_argument("--list", action="store_true", help="only print what would be started")
    found.add_argument("--run", nargs="+", metavar="CASE", help="run these, without a tool")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    wanted = "cpu" if options.list else "cuda"
    reason = cuda.unavailable(wanted) or (None if options.run else cuda.unavailable("cpu"))
    if reason is None and not (options.list or options.run or shutil.which("compute-sanitizer")):
        reason = "compute-sanitizer is not on the PATH; it comes with the CUDA toolkit."
    if reason is not None:
        print(f"cannot sanitize: {reason}", file=sys.stderr)
        return 2
    if options.as_large:
        as_large.set_sizes()
    if options.run:
        try:
            run(options.run)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        return 0
    names = [str(case) for case in smallest(options.family, options.entry or ("",))]
    if not names:
        print("cannot sanitize: no case launches such an entry", file=sys.stderr)
        return 2
    faulty = []
    for tool in options.tool or TOOLS:
        started = command(tool, names, as_large=options.as_large)
        if options.list:
            settings = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
            print(settings, shlex.join(started))
        elif subprocess.run(started, env={**os.environ, **ENVIRONMENT}, check=False).returncode:
            faulty.append(tool)
    if faulty:
        print(f"not clean: {', '.join(faulty)}", file=sys.stderr)
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
