"""The software and the machine of a measurement."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
ON_HOST = "host-runner"
Lines = Iterator[tuple[object, Callable[[], None]]]


def provenance(commit: str | None = None) -> dict[str, str | None]:
    """The machine, the software and the day; ``None`` for what there is not.

    Args:
        commit: of detmode, for a copy without its repository; else git is asked.
    """
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    ask_driver = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")
    return {
        "gpu": gpu,
        "driver": _answer(*ask_driver) if gpu is not None else None,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "torch._native": _overrides(),
        "cupy": _cupy(),
        "cpu": cpu(),
        "python": platform.python_version(),
        "commit": commit or _answer("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
        "date": datetime.date.today().isoformat(),
    }


@dataclass
class Measured:
    """Measurements with their provenance, as a file that is written after each line.

    Args:
        provenance: see :func:`provenance`; without a GPU, the CUDA kernels ran on the host runner,
            and no time is that of a GPU.
    """

    provenance: dict[str, str | None]

    @property
    def place(self) -> str:
        """The place of the measurement: the GPU, or the host runner."""
        return self.provenance["gpu"] or ON_HOST

    def file_name(self) -> str:
        """``nvidia-h100-80gb-hbm3-2026-11-21.json``."""
        words = re.sub(r"[^a-z0-9]+", "-", self.place.lower()).strip("-")
        return f"{words}-{self.provenance['date']}.json"

    def resume(self, folder: Path) -> None:
        """Take over what a run with the same provenance has written to the folder.

        Raises:
            ValueError: if the file there was measured with or on something else.
        """
        path = folder / self.file_name()
        if not path.exists():
            return
        begun = self.read(path)
        if begun.provenance != self.provenance:
            raise ValueError(f"{path} is of another commit or machine; move it away")
        for name, value in vars(begun).items():
            if isinstance(value, (list, dict)):
                setattr(self, name, value)

    def begin(self, options: argparse.Namespace) -> bool:
        """Resume, if that is asked for; ``False`` where it cannot be, and the reason is printed."""
        try:
            if options.resume:
                self.resume(options.output)
        except ValueError as error:
            print(error, file=sys.stderr)
            return False
        return True

    def fill(self, lines: Lines, most: int, options: argparse.Namespace) -> None:
        """Measure lines until the minutes are over, and write the file after each.

        Args:
            lines: the subject of each, and the function that measures it.
            most: the largest number of them.
            options: those of :func:`add_options`.
        """
        start = time.monotonic()
        for done, (what, measure) in enumerate(lines):
            minutes = (time.monotonic() - start) / 60
            if minutes >= options.minutes:
                print(f"stopped after {minutes:.1f} minutes; --resume goes on", file=sys.stderr)
                return
            left = f", about {minutes / done * (most - done):.0f} min left" if done else ""
            print(f"{done + 1} of at most {most}{left}: {what} ...", file=sys.stderr, flush=True)
            measure()
            self.write(options.output)

    def write(self, folder: Path) -> Path:
        """Write the file whole, or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.file_name()
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")
        os.replace(beside, path)
        return path

    @classmethod
    def read(cls, path: Path) -> Measured:
        """Read what :meth:`write` wrote."""
        raise NotImplementedError


def add_options(parser: argparse.ArgumentParser, folder: Path) -> None:
    """The options of a command that measures until its minutes are over, and can be resumed."""
    parser.add_argument(
        "--minutes",
        type=_minutes,
        default=math.inf,
        help="begin no line after so many; --resume does the rest",
    )
    parser.add_argument("--output", type=Path, default=folder, help="folder of the JSON")
    parser.add_argument(
        "--resume", action="store_true", help="keep what the file has, measure the rest"
    )
    parser.add_argument("--commit", help="of detmode, in a copy without its repository")


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError(f"a number of minutes above 0, not {text}")
    return minutes


def cpu() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _cupy() -> str | None:
    for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _overrides() -> str | None:
    """The operators whose CUDA kernels PyTorch overrides here, and what those are written in."""
    try:
        from torch.backends import python_native
    except ImportError:  # PyTorch 2.11 and older
        return None
    found = []
    for name in python_native.available_dsls:
        language = getattr(python_native, name)
        operators = python_native.get_dsl_operations(name) if language.enabled else []
        if operators:
            found.append(f"{name} {language.version}: {', '.join(operators)}")
    return "; ".join(found) or None


def _answer(*command: str) -> str | None:
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None
