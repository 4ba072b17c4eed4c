"""PyTorch, GPUs, and whether CUDA kernels can be launched."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Iterator

import torch

from detmode import cuda
from detmode.cuda import host, native
from detmode.environment.doctor.finding import Finding, Look, Severity
from detmode.process.versions import SUPPORTED, VERSIONS, parse_version


def _pytorch() -> Iterator[Finding]:
    version = parse_version(torch.__version__)
    yield Finding.either(
        "PyTorch",
        torch.__version__,
        SUPPORTED[0] <= version <= SUPPORTED[1],
        "the rule table was checked against it",
        f"the rule table was checked against {VERSIONS}: what another version alerts on "
        "still alerts, but without a substitute",
        f"use PyTorch {VERSIONS}, or a newer detmode",
    )
    if not hasattr(torch.library, "get_kernel"):
        yield Finding(
            'intercept="listed"',
            "not possible with this PyTorch",
            "DeterministicMode intercepts all calls of its thread instead",
            "use PyTorch 2.9 or newer",
            "note",
        )


def _devices() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        yield Finding(
            "GPU",
            "none that PyTorch can use",
            "no call meets the rows for CUDA",
        )
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
    yield _launch_by(
        "cuda",
        "CUDA kernels (CuPy, NVRTC, driver)",
        "substitutes run on CUDA tensors",
        "on CUDA tensors PyTorch's own path runs, or the call is refused",
        "warning" if torch.cuda.is_available() else "note",
    )
    yield _launch_by(
        "cpu",
        "host runner (C++ compiler)",
        "--simulate cuda and verify --device host work",
        "--simulate cuda runs without simulation; verify --device host does not run",
        "note",
    )


def _native() -> Iterator[Finding]:
    subject = f"player in C++ ({native.VARIABLE})"
    try:
        is_wanted = native.is_wanted()
    except ValueError as error:
        yield Finding(subject, "unknown", str(error), f"set {native.VARIABLE} to 0 or 1")
        return
    reason = native.problem() or host.unavailable()
    in_python = "Python makes each call that a mode receives"
    if not is_wanted:
        yield Finding(subject, "off", in_python)
    else:
        yield Finding.either(
            subject,
            "on" if reason is None else "not available",
            reason is None,
            "calls that were met before are made without Python, but for launches on GPUs"
            if not native.launches_on("cuda")
            else "calls that were met before are made without Python",
            f"{in_python}: {reason}",
            f"set {native.VARIABLE}=0, or install what is missing",
            "note",
        )


def _launch_by(device: str, subject: str, fine: str, effect: str, severity: Severity) -> Finding:
    reason = cuda.unavailable(device)
    state = "available" if reason is None else "not available"
    return Finding.either(subject, state, reason is None, fine, effect, reason, severity)


_UNSEEN = {
    "mamba_ssm": "releases that do not read PyTorch's flag add by atomics; update it, and leave "
    "MAMBA_DETERMINISTIC unset",
    "torch_scatter": "use torch_geometric.utils.scatter, or pyg-lib, for products and segments",
    "transformer_engine": "export NVTE_ALLOW_NONDETERMINISTIC_ALGO=0",
}
"""Packages whose CUDA kernels are called past the dispatcher, and the remedy of each."""


def _packages() -> Iterator[Finding]:
    for name, remedy in _UNSEEN.items():
        if importlib.util.find_spec(name) is not None:
            yield Finding(
                name,
                "installed",
                "it calls CUDA kernels past PyTorch's dispatcher, where no mode sees them; some "
                "add by atomics",
                remedy,
                "note",
            )


LOOKS: tuple[Look, ...] = (_pytorch, _devices, _launches, _native, _packages)
