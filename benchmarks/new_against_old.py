"""Two versions of detmode's kernels beside one another, in one process and in turns.

``--old FOLDER`` holds the other version's ``detmode`` folder: ``git archive COMMIT detmode | tar -x
-C FOLDER`` makes it. Bits are compared before anything is timed. Times of two processes differ by
more than versions of a kernel do: clocks, memory and neighbours are others.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
from results import number, over, table
from sides import DeviceMaker, timed_families
from timing import Clock, Timed, interleaved

import detmode
from detmode.table import markers
from detmode.table.samples import Sample
from detmode.verify.cases import call, samples_of, tensors_of
from detmode.verify.claims import same_bits

HEADS = ("operator", "input", "dtype", "old, us", "new, us", "new over old", "bits")


class Version:
    """The ``detmode`` of a folder, whose modules are in the place of the imported ones in a block.

    Raises:
        ValueError: the folder has none.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / "detmode" / "__init__.py").is_file():
            raise ValueError(f"--old {folder}: it has no folder detmode")
        # It registers operators, of which PyTorch has one of a name.
        self._modules = {markers.__name__: markers}
        self._folder = str(folder)

    @contextmanager
    def active(self) -> Iterator[None]:
        """A block in which whatever is imported is this version's."""
        current = _taken()
        sys.modules.update(self._modules)
        finders = list(sys.meta_path)
        sys.path.insert(0, self._folder)
        try:
            yield
        finally:
            sys.path.remove(self._folder)
            sys.meta_path[:] = finders
            self._modules = _taken()
            sys.modules.update(current)

    @contextmanager
    def mode(self, simulate: str | None) -> Iterator[None]:
        """A block under this version's mode."""
        with self.active():
            module = importlib.import_module("detmode.mode.deterministic_mode")
            with module.DeterministicMode(simulate=simulate):
                yield


def _taken() -> dict[str, ModuleType]:
    """The modules of detmode, which are no longer imported then."""
    names = [name for name in sys.modules if name.partition(".")[0] == "detmode"]
    return {name: sys.modules.pop(name) for name in names}


def line(
    sample: Sample, dtype: torch.dtype, clock: Clock, rounds: int, old: Version
) -> tuple[str, ...]:
    """The times of an input under both."""
    arguments = sample.make(DeviceMaker(dtype, clock.device))
    simulate = None if clock.device.type == "cuda" else "cuda"
    around: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "old": lambda: old.mode(simulate),
        "new": lambda: detmode.DeterministicMode(simulate=simulate),
    }
    results = []
    for enter in around.values():
        with enter():
            results.append(tensors_of(call(sample, arguments)))
    bits = "same" if same_bits(*results) else "differ"
    del results
    sides = {name: Timed(partial(call, sample, arguments), enter) for name, enter in around.items()}
    times = interleaved(sides, clock, rounds)
    cells = (str(times["old"]), str(times["new"]), number(over(times["new"], times["old"])))
    return (sample.op, sample.name, str(dtype).removeprefix("torch."), *cells, bits)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    found.add_argument("--old", type=Path, required=True, metavar="FOLDER")
    found.add_argument(
        "--family",
        action="append",
        choices=timed_families(),
        metavar="FAMILY",
        help="repeatable; default: all",
    )
    found.add_argument("--sample", action="append", help="only of this name; repeatable")
    found.add_argument("--tests", action="store_true", help="the tests' samples, which are small")
    found.add_argument("--rounds", type=int, default=20, help="how often each is timed")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        old = Version(options.old)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    clock = Clock()
    lines = []
    for family in options.family or timed_families():
        samples = samples_of(family)
        for sample in samples.cases if options.tests else samples.bench:
            if sample.device == "cuda" and sample.name in (options.sample or [sample.name]):
                lines.append(line(sample, sample.dtypes[0], clock, options.rounds, old))
                print(*lines[-1], sep="  ", flush=True)
    print(table(HEADS, lines))
    return 1 if any(cells[-1] == "differ" for cells in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
