"""The operators that are substituted in PyTorch's own sample inputs, forward and backward.

``tools/write_expected.py`` writes ``tests/expect/substituted.txt`` from it: a line for each of
PyTorch's operators, in float32.
"""

import contextlib
import warnings
from itertools import islice
from typing import Any

import torch
from timing import tensors_of

from detmode import DeterministicMode
from tests.shared import ROOT
from tests.shared.opinfo import name_of, operators, run, samples_of

LINES = ROOT / "tests" / "expect" / "substituted.txt"
SAMPLES = 12
"""Of each operator, the first ones: most later ones meet the same."""
LARGE = 100_000
"""Elements of a sample that is run in the first dtype alone, and not here: a larger shape has no
other cases in another dtype, and a few of these samples would take most of the time."""
VERSION = ".".join(torch.__version__.split(".")[:2])
HEAD = (
    "# With PyTorch {}: an operator of its tests, and what of its first samples is substituted.\n"
)


def overloads(mode: DeterministicMode) -> frozenset[str]:
    """The overloads that a mode substituted."""
    return frozenset(row.overload for row in mode.records if row.action == "substitute")


def pinned() -> dict[str, str]:
    """The overloads of each operator, separated by commas; none for another PyTorch."""
    text = LINES.read_text(encoding="utf-8") if LINES.exists() else ""
    if not text.startswith(HEAD.format(VERSION)):
        return {}
    return dict(line.rsplit(" ", 1) for line in text.splitlines()[1:])


def found() -> dict[str, str]:
    """The same as the samples meet them now."""
    return {
        name_of(op): ",".join(sorted(met))
        for op in operators()
        if torch.float32 in op.supported_dtypes("cpu") and (met := met_by(op))
    }


def met_by(op: Any) -> set[str]:
    """The overloads that the first samples of one operator meet."""
    met: set[str] = set()
    with warnings.catch_warnings():
        # PyTorch's samples call what is deprecated.
        warnings.simplefilter("ignore")
        for sample in islice(samples_of(op, torch.float32), SAMPLES):
            inputs = tensors_of((sample.input, sample.args, sample.kwargs))
            if sum(each.numel() for each in inputs) > LARGE:
                continue
            with contextlib.suppress(Exception), DeterministicMode(simulate="cuda") as mode:
                run(op, sample)
            met |= overloads(mode)
    return met


def text_of(lines: dict[str, str]) -> str:
    """The file's text, sorted."""
    head = HEAD.format(VERSION)
    return head + "".join(f"{name} {lines[name]}\n" for name in sorted(lines))
