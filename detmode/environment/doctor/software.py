"""PyTorch, GPUs, and whether CUDA kernels can be launched."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator

import torch

from detmode import cuda
from detmode.environment.doctor.finding import Finding, Look
from detmode.environment.versions import SUPPORTED, VERSIONS, parse_version


def _pytorch() -> Iterator[Finding]:
    version = parse_version(torch.__version__)
    if SUPPORTED[0] <= version <= SUPPORTED[1]:
        yield Finding("PyTorch", torch.__version__, "the rule table was checked against it")
        return
    yield Finding(
        "PyTorch",
        torch.__version__,
        f"the rule table was checked against {VERSIONS}: what another version alerts on "
        "still alerts, but without a substitute",
        f"use PyTorch {VERSIONS}, or a newer detmode",
    )


def _devices() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        yield Finding("GPU", "none that PyTorch can use", "the mode's CUDA rules are not met here")
        return
    names = _gpu_names(torch.cuda.device_count())
    yield Finding("GPU", ", ".join(names), "run_to_run holds for one model of GPU")
    if len(set(names)) > 1:
        yield Finding(
            "GPU models",
            f"{len(set(names))} different ones",
            "only gpu_to_gpu rows give the same bits on all of them",
            "choose one model with CUDA_VISIBLE_DEVICES",
        )


def _gpu_names(count: int) -> list[str]:
    """Return the visible GPUs from the driver; PyTorch would create a context to read a name."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        failed = driver.cuInit(0)
    except (OSError, AttributeError):
        failed = 1
    if failed:
        return ["of unknown model"] * count
    names = []
    for index in range(count):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        failed = driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetName(
            name, len(name), device
        )
        names.append("of unknown model" if failed else name.value.decode())
    return names


def _launches() -> Iterator[Finding]:
    reason = cuda.unavailable("cuda")
    yield Finding(
        "CUDA kernels (CuPy, NVRTC, driver)",
        "available" if reason is None else "not available",
        "substitutes run on CUDA tensors"
        if reason is None
        else "on CUDA tensors PyTorch's own path runs, or the call is refused",
        reason,
        "warning" if reason is not None and torch.cuda.is_available() else "note",
    )
    reason = cuda.unavailable("cpu")
    yield Finding(
        "host runner (C++ compiler)",
        "available" if reason is None else "not available",
        "--simulate cuda and verify --device host work"
        if reason is None
        else "--simulate cuda runs without simulation; verify --device host does not run",
        reason,
        "note",
    )


LOOKS: tuple[Look, ...] = (_pytorch, _devices, _launches)
