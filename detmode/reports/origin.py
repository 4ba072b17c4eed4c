"""The origin of a report: the command that made it, and the versions."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import detmode


def this_process() -> dict[str, Any]:
    """The origin of a report that this process makes: versions and command."""
    import torch  # whoever makes a report has it; whoever names the class need not

    return {
        "detmode": detmode.__version__,
        "torch": torch.__version__,
        "command": list(sys.orig_argv),
    }


def origin_of(head: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return names and texts for what a report's head says of its origin."""
    versions = ("detmode", head["detmode"]), ("PyTorch", head["torch"])
    ranks = (("ranks", f"{head['world_size']}"),) if "world_size" in head else ()
    return (("command", _as_typed(head["command"])), *versions, *ranks)


def _as_typed(command: Sequence[object]) -> str:
    """Return a command without the folders of Python and of detmode, which say nothing of it."""
    words = [*map(str, command)]
    python, options = words[:1], [*takewhile(lambda word: word.startswith("-"), words[1:])]
    program, *arguments = words[1 + len(options) :] or [""]
    if Path(program).stem == "detmode":
        return shlex.join(["detmode", *arguments])
    return shlex.join([*(Path(word).name for word in python), *words[1:]])
