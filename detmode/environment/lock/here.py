"""The choices of this process that stand before a program runs."""

from __future__ import annotations

import contextlib
import platform
import re
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

import detmode
from detmode.environment import known
from detmode.environment.lock.lock_file import Section, Sections

_NONE = "none"


def lock_of(**more: Section) -> Sections:
    """Return the lock of this environment.

    Args:
        more: further sections, of what is not known here: the rules, the run.
    """
    return {
        "versions": _versions(),
        "machine": {
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "driver": _driver(),
            "gpus": _gpus(),
        },
        "variables": known.variables(),
        "settings": known.settings(),
        **more,
    }


def _versions() -> dict[str, str]:
    cuda = torch.version.cuda
    major = (cuda or "").partition(".")[0]
    return {
        "cublas": _installed(f"nvidia-cublas-cu{major}", "nvidia-cublas") if cuda else _NONE,
        "cuda": cuda or _NONE,
        "cudnn": _cudnn(),
        "cupy": _installed("cupy-cuda13x", "cupy-cuda12x", "cupy"),
        "detmode": detmode.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if _has_nccl() else _NONE,
        "numpy": _installed("numpy"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _installed("triton", "pytorch-triton", "triton-windows"),
    }


@cache
def _installed(*names: str) -> str:
    """Return the version of the first of these distributions that is installed."""
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return _NONE


def _cudnn() -> str:
    try:
        return str(torch.backends.cudnn.version() or _NONE)
    except RuntimeError:  # the loaded one is not that with which PyTorch was built
        return "does not load"


def _has_nccl() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_nccl_available()


def _gpus() -> list[str]:
    """Return the models of this machine's GPUs, without a context, which no child could use."""
    if torch.cuda.is_initialized():
        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    models = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            lines = file.read_text().splitlines()
            models += [line.split(":")[1].strip() for line in lines if line.startswith("Model")]
    return models


def _driver() -> str:
    with contextlib.suppress(OSError):
        version = Path("/proc/driver/nvidia/version").read_text()
        match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", version)
        if match is not None:
            return match[1]
    return _NONE
