"""What in this environment can break or slow reproducibility, each with its remedy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch

from detmode import cuda
from detmode.rule import parse_version

SUPPORTED = ((2, 8), (2, 15))
"""The first and the last PyTorch whose alerts the rule table was checked against."""


@dataclass(frozen=True)
class Finding:
    """One setting or part of the environment.

    Args:
        subject: what was looked at.
        state: what it is here.
        effect: what follows for reproducibility, or for speed.
        remedy: what to do; ``None`` where there is nothing to do.
    """

    subject: str
    state: str
    effect: str
    remedy: str | None = None

    def as_text(self) -> dict[str, str | None]:
        """The fields by name."""
        return asdict(self)


def findings() -> tuple[Finding, ...]:
    """Everything that is looked at, whether or not there is something to do."""
    return tuple(finding for look in _LOOKS for finding in look())


def _pytorch() -> Iterator[Finding]:
    version = parse_version(torch.__version__)
    if SUPPORTED[0] <= version <= SUPPORTED[1]:
        yield Finding("PyTorch", torch.__version__, "the rule table was checked against it")
        return
    first, last = (".".join(map(str, each)) for each in SUPPORTED)
    yield Finding(
        "PyTorch",
        torch.__version__,
        f"the rule table was checked against {first} to {last}: what another version alerts on "
        "still alerts, but without a substitute",
        f"use PyTorch {first} to {last}, or a newer detmode",
    )


def _devices() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        yield Finding("GPU", "none that PyTorch can use", "the mode's CUDA rules are not met here")
        return
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    yield Finding("GPU", ", ".join(names), "run_to_run holds for one model of GPU")
    if len(set(names)) > 1:
        yield Finding(
            "GPU models",
            f"{len(set(names))} different ones",
            "only gpu_to_gpu rows give the same bits on all of them",
            "choose one model with CUDA_VISIBLE_DEVICES",
        )


def _launches() -> Iterator[Finding]:
    reason = cuda.unavailable("cuda")
    yield Finding(
        "CUDA kernels (CuPy, NVRTC, driver)",
        "available" if reason is None else "not available",
        "substitutes run on CUDA tensors"
        if reason is None
        else "on CUDA tensors PyTorch's own path runs, or the call is refused",
        reason,
    )
    reason = cuda.unavailable("cpu")
    yield Finding(
        "host runner (C++ compiler)",
        "available" if reason is None else "not available",
        "--simulate cuda and verify --device host work"
        if reason is None
        else "--simulate cuda runs without simulation; verify --device host does not run",
        reason,
    )


def _cublas() -> Iterator[Finding]:
    name = "CUBLAS_WORKSPACE_CONFIG"
    value = os.environ.get(name)
    if value in (":4096:8", ":16:8"):
        yield Finding(name, value, "cuBLAS gives the same bits with several streams")
        return
    yield Finding(
        name,
        "not set" if value is None else value,
        "with several streams cuBLAS may vary; PyTorch 2.8 and 2.9 refuse matrix products",
        "`detmode run` sets it; elsewhere export CUBLAS_WORKSPACE_CONFIG=:4096:8 before Python "
        "starts",
    )


def _hash_seed() -> Iterator[Finding]:
    name = "PYTHONHASHSEED"
    value = os.environ.get(name)
    if value not in (None, "", "random"):
        yield Finding(name, str(value), "sets of strings have the same order in every run")
        return
    yield Finding(
        name,
        "not set" if value is None else value,
        "sets of strings are ordered anew in every run, and what iterates over them too",
        "`detmode run` sets it; elsewhere export PYTHONHASHSEED=0 before Python starts",
    )


def _cudnn() -> Iterator[Finding]:
    backend = torch.backends.cudnn
    state = f"deterministic={backend.deterministic}, benchmark={backend.benchmark}"
    if backend.deterministic and not backend.benchmark:
        yield Finding("cuDNN", state, "the same algorithm is chosen in every run")
        return
    yield Finding(
        "cuDNN",
        state,
        "outside the mode the algorithm, and so the bits, may change from run to run",
        "nothing under the mode, which sets deterministic=True and benchmark=False",
    )


def _precision() -> Iterator[Finding]:
    state = torch.get_float32_matmul_precision()
    try:
        state += f", cuDNN allow_tf32={torch.backends.cudnn.allow_tf32}"
        reduced = state != "highest, cuDNN allow_tf32=False"
    except RuntimeError:
        # PyTorch refuses to read the old setting after the new one was written.
        reduced = state != "highest"
    yield Finding(
        "float32 precision",
        state,
        "TF32 does not vary from run to run, but GPUs with and without it give other bits"
        if reduced
        else "no TF32",
        "for several GPU models: torch.set_float32_matmul_precision('highest') and "
        "torch.backends.cudnn.allow_tf32 = False"
        if reduced
        else None,
    )


def _fill() -> Iterator[Finding]:
    name = "fill_uninitialized_memory"
    if torch._C._get_deterministic_fill_uninitialized_memory():
        yield Finding(
            name,
            "True",
            "under PyTorch's flag every torch.empty is written once more: slower, but a program "
            "that reads uninitialised memory does not vary",
            "for a program that reads none: DeterministicMode(fill_uninitialized_memory=False)",
        )
    else:
        yield Finding(
            name,
            "False",
            "a program that reads uninitialised memory may vary",
            "DeterministicMode(fill_uninitialized_memory=True) shows whether yours does",
        )


def _nccl() -> Iterator[Finding]:
    if not torch.distributed.is_available():
        return
    value = os.environ.get("NCCL_ALGO")
    if value is None:
        yield Finding(
            "NCCL_ALGO",
            "not set",
            "under its flag PyTorch sets ^NVLS when a process group is made; one made before the "
            "mode is entered may vary",
            "make process groups inside the mode, or export NCCL_ALGO=^NVLS",
        )
    else:
        yield Finding(
            "NCCL_ALGO",
            value,
            "PyTorch leaves a given value as it is",
            None if value.startswith("^") and "NVLS" in value else "exclude NVLS: NCCL_ALGO=^NVLS",
        )


def _threads() -> Iterator[Finding]:
    asked = os.environ.get("OMP_NUM_THREADS", "not set")
    yield Finding(
        "CPU threads",
        f"{torch.get_num_threads()} (OMP_NUM_THREADS {asked})",
        "reductions on the CPU are split by the number of threads: another number, other bits",
        None
        if "OMP_NUM_THREADS" in os.environ
        else "for the same bits on machines with other core counts: export OMP_NUM_THREADS",
    )
    if torch.backends.mkl.is_available():
        value = os.environ.get("MKL_CBWR")
        yield Finding(
            "MKL_CBWR",
            value or "not set",
            "MKL chooses its code by the CPU's model"
            if value is None
            else "MKL's code path is fixed",
            "for the same bits on different CPUs: export MKL_CBWR=COMPATIBLE (slower)"
            if value is None
            else None,
        )


def _debugging() -> Iterator[Finding]:
    for name, effect in (
        ("CUDA_LAUNCH_BLOCKING", "every launch is waited for: slow, and no more deterministic"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "every allocation goes to the driver: slow"),
    ):
        value = os.environ.get(name)
        if value not in (None, "", "0"):
            yield Finding(name, str(value), effect, f"unset {name}")


def _python() -> Iterator[Finding]:
    if sys.flags.ignore_environment:
        yield Finding(
            "python -E or -I",
            "on",
            "PYTHONHASHSEED is not read: sets of strings are ordered anew in every run",
            "start Python without -E and -I",
        )


_LOOKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _pytorch,
    _devices,
    _launches,
    _cublas,
    _hash_seed,
    _python,
    _cudnn,
    _precision,
    _fill,
    _nccl,
    _threads,
    _debugging,
)
