"""What a measurement was made with and on."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import subprocess
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent


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
        "cupy": _cupy(),
        "cpu": cpu(),
        "python": platform.python_version(),
        "commit": commit or _answer("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
        "date": datetime.date.today().isoformat(),
    }


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


def _answer(*command: str) -> str | None:
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None
