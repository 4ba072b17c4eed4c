"""What ``rooms.py`` measured, as JSON and back."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from host_cost import Part
from provenance import ROOT
from sides import Row
from timing import Spread
from whole_steps import Step

FOLDER = ROOT / "benchmarks" / "results"
ON_HOST = "host-runner"


@dataclass
class Results:
    """The measurements of one run.

    Args:
        provenance: see :func:`provenance.provenance`; without a GPU, the CUDA kernels ran on the
            host runner, and no time is that of a GPU.
        bandwidth: bytes that a copy reads and writes in a second.
        rounds: how often each side was timed.
        rows: the operators.
        host: what a call costs the host.
        steps: whole training steps.
    """

    provenance: dict[str, str | None]
    bandwidth: float
    rounds: int
    rows: list[Row] = field(default_factory=list)
    host: list[Part] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU was measured."""
        return self.provenance["gpu"] is not None

    def file_name(self) -> str:
        """``nvidia-h100-80gb-hbm3-2026-11-21.json``."""
        place = self.provenance["gpu"] or ON_HOST
        words = re.sub(r"[^a-z0-9]+", "-", place.lower()).strip("-")
        return f"{words}-{self.provenance['date']}.json"

    def resume(self, folder: Path) -> None:
        """Take over what a run with the same provenance has written to the folder.

        Raises:
            ValueError: what is there was measured with or on something else.
        """
        path = folder / self.file_name()
        if not path.exists():
            return
        begun = Results.read(path)
        if begun.provenance != self.provenance:
            raise ValueError(f"{path} is of another commit or machine; move it away")
        self.rows, self.host, self.steps = begun.rows, begun.host, begun.steps

    def write(self, folder: Path) -> Path:
        """Write the file whole, or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.file_name()
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")
        os.replace(beside, path)
        return path

    @classmethod
    def read(cls, path: Path) -> Results:
        """What :meth:`write` wrote."""
        found = json.loads(path.read_text(encoding="utf-8"))
        found["rows"] = [Row(**_with_times(row)) for row in found["rows"]]
        found["host"] = [Part(part["name"], _time(part["time"])) for part in found["host"]]
        found["steps"] = [Step(**_with_times(step, "work")) for step in found["steps"]]
        return cls(**found)


def _with_times(fields: dict[str, Any], *more: str) -> dict[str, Any]:
    times = {
        name: {side: _time(time) for side, time in fields[name].items()}
        for name in ("times", *more)
    }
    return {**fields, **times}


def _time(time: Any) -> Spread | str:
    return Spread(**time) if isinstance(time, dict) else str(time)


def of_gpus(folder: Path = FOLDER) -> list[Results]:
    """The committed results that are of a GPU, by file name."""
    paths = (path for path in sorted(folder.glob("*.json")) if path.name[:10] != "variation-")
    found = [Results.read(path) for path in paths]
    return [results for results in found if results.on_gpu]
