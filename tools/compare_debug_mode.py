"""Write into ``docs/design/debug-mode.md`` what detmode and DebugMode say of the same runs.

Each kind of fault of ``tests/runs/faults.py`` is put into one of two runs, and both tools compare
the two. DebugMode is used as favourably as it allows: inputs and outputs hashed, inputs before the
call, modules recorded, uninitialised memory set to zero so that its hash says nothing, and what it
reports of two runs without a fault left out. ``--check`` measures again and changes nothing.
"""

import argparse
import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sections
import torch
from sections import ROOT
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from provenance import cpu

from detmode import diff
from detmode.runs.trace_file import Reader
from tests.runs.faults import KINDS, Kind
from tests.shared.training import Training

PAGE = ROOT / "docs" / "design" / "debug-mode.md"
TOOL = "tools/compare_debug_mode.py"
HEADS = (
    "fault",
    "first call that it touches",
    "`detmode diff`",
    "DebugMode, its hashes",
    "DebugMode, a hash of all bytes",
)

Logs = list[Any]
Hash = list[str] | Callable[[Tensor], int]


def every_byte(tensor: Tensor) -> int:
    """A hash of all bytes in row-major order, as a hash function for DebugMode."""
    content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return int.from_bytes(hashlib.blake2b(content, digest_size=16).digest(), "little")


HASHES: tuple[Hash, ...] = (["norm", "hash_tensor"], every_byte)


class Zeroed(TorchDispatchMode):
    """Memory that nobody has written is zero."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.zero_() if func._schema.name.startswith("aten::empty") else result


class Watched:
    """DebugMode's logs of trainings, and how far they can be told from one without a fault."""

    def __init__(self, hash_fn: Hash) -> None:
        self.hash_fn = hash_fn
        self.faultless = self.logs(Training())
        self.always = set(mismatches(self.faultless, self.logs(Training())))

    def logs(self, training: Training) -> Logs:
        """One run."""
        logs: Logs = []

        @contextlib.contextmanager
        def observer() -> Iterator[None]:
            from torch.utils._debug_mode import DebugMode

            hashed = DebugMode.log_tensor_hashes(self.hash_fn, hash_inputs=True)
            with Zeroed(), DebugMode(record_nn_module=True) as mode, hashed:
                yield
            logs.extend(mode.logs)

        training.run(observer())
        return logs

    def says(self, kind: Kind) -> str:
        """The answer of a comparison with a run that has the fault."""
        try:
            found = mismatches(self.faultless, self.logs(kind.training))
        except ValueError as error:
            return f"cannot compare: `{error}`"
        positions = [place[0] for place in found if place not in self.always]
        if not positions:
            return "sees nothing"
        calls = [name(log) for log in self.faultless]
        first = min(positions)
        same = [place for place, call in enumerate(calls) if call == kind.overload]
        if kind.occurrence is not None and first == same[kind.occurrence]:
            return "names it"
        return f"names another: `{calls[first]}`"

    def says_of_none(self) -> str:
        """The answer of a comparison of two runs without a fault."""
        if not self.always:
            return "sees nothing"
        calls = dict.fromkeys(f"`{name(self.faultless[place[0]])}`" for place in self.always)
        return f"reports {', '.join(calls)}"


def mismatches(first: Logs, second: Logs) -> list[tuple[int, str, bool]]:
    """DebugMode's report: the position of the call, the tensor, whether it is an input.

    DebugMode's own entries have no position; it is found by comparing call by call.
    """
    from torch.utils._debug_mode import DebugMode

    if not DebugMode.check_hash_mismatches(first, second, compare_inputs=True):
        return []
    return [
        (place, entry["pytree_path"], entry["is_input_hash"])
        for place, (one, other) in enumerate(zip(first, second, strict=True))
        for entry in DebugMode.check_hash_mismatches([one], [other], compare_inputs=True)
    ]


def name(log: Any) -> str:
    """The overload of a logged call; of a module's name, the text."""
    op = getattr(log, "op", None)
    return f"{op._schema.name}.{op._overloadname or 'default'}" if op is not None else str(log)


def our_answer(faultless: Path, kind: Kind, path: Path) -> str:
    """The answer of ``detmode diff``."""
    divergence = diff(faultless, kind.training.record(path)).divergence
    if divergence is None:
        return "sees nothing"
    if divergence.call.overload != kind.overload:
        return f"names another: `{divergence.call.overload}`"
    if kind.occurrence is not None:
        calls = [call.overload for call in Reader(faultless).calls()]
        if divergence.first is None or calls[: divergence.first.number].count(kind.overload) != (
            kind.occurrence
        ):
            return f"names another: `{divergence.call.overload}`"
    return f"names it: {divergence.kind}"


def measure() -> list[tuple[str, ...]]:
    """The rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        faultless = Training().record(Path(folder) / "faultless")
        again = diff(faultless, Training().record(Path(folder) / "again"))
        watched = [Watched(hash_fn) for hash_fn in HASHES]
        ours = "sees nothing" if again.identical else f"reports `{again.divergence}`"
        rows = [("none", "", ours, *(each.says_of_none() for each in watched))]
        for kind in KINDS:
            ours = our_answer(faultless, kind, Path(folder) / kind.name)
            theirs = [each.says(kind) for each in watched]
            rows.append((kind.name.replace("_", " "), f"`{kind.overload}`", ours, *theirs))
    return rows


def table(rows: list[tuple[str, ...]]) -> str:
    lines = [HEADS, ("---",) * len(HEADS), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def version() -> str:
    """PyTorch's, without the kind of build."""
    return torch.__version__.partition("+")[0]


def measured_with(section: str) -> str:
    """The version of PyTorch that the committed table is of."""
    return section.rpartition("PyTorch ")[2].partition(",")[0].partition("+")[0]


def stale() -> str | None:
    """The fault of the committed table; ``None`` if it has none, or if it cannot be told."""
    section = sections.read(PAGE, TOOL)
    if measured_with(section) != version():
        return None
    if table(measure()) in section:
        return None
    return f"{PAGE.name} does not say what is measured; run: python {TOOL}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether it is stale")
    check = parser.parse_args().check
    if check:
        wrong = stale()
        print(wrong or f"the table is that of PyTorch {measured_with(sections.read(PAGE, TOOL))}")
        return 1 if wrong else 0
    with_what = f"Measured with PyTorch {torch.__version__}, {cpu()}, {os.cpu_count()} cores."
    sections.write(PAGE, TOOL, f"{table(measure())}\n\n{with_what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
