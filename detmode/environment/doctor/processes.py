"""The program and its processes: random numbers, workers, threads, Python itself."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator

import torch

from detmode.environment import known
from detmode.environment.doctor.finding import Finding, Look, variable

_UNKNOWN = "not known before a program runs"


def _hash_seed() -> Iterator[Finding]:
    name = "PYTHONHASHSEED"
    value = known.variable(name)
    yield Finding.either(
        name,
        "not set" if value is None else value,
        value not in (None, "", "random"),
        "sets of strings have the same order in every run",
        "the order of sets of strings varies between runs, and with it all that iterates over them",
        "`detmode run` sets it; elsewhere export PYTHONHASHSEED=0 before Python starts"
        if value != "random"
        else "export PYTHONHASHSEED=0 before Python starts; `detmode run` leaves what is set",
        "error" if value == "random" else "warning",
    )


def _python() -> Iterator[Finding]:
    if sys.flags.ignore_environment:
        yield Finding(
            "python -E or -I",
            "on",
            "PYTHONHASHSEED is not read: the order of sets of strings varies between runs",
            "start Python without -E and -I",
            "error",
        )


def _seeds() -> Iterator[Finding]:
    yield Finding(
        "seeds",
        _UNKNOWN,
        "a generator that is not seeded starts at random, and cannot be told from a seeded one: "
        "torch.initial_seed() is a number in both cases",
        "detmode.seed_everything(0); of two recorded runs detmode diff says whether seeds differ",
        "note",
    )
    yield Finding(
        "DataLoader generators",
        _UNKNOWN,
        "without one, the order of samples and the seeds of workers are drawn from PyTorch's "
        "global generator, and depend on everything that was drawn before",
        "DataLoader(..., **detmode.dataloader_kwargs(0))",
        "note",
    )


def _workers() -> Iterator[Finding]:
    # Asking for the method alone would fix it for the process.
    method = multiprocessing.get_start_method(allow_none=True)
    method = method or multiprocessing.get_all_start_methods()[0]
    yield Finding.either(
        "DataLoader workers",
        f"started by {method}",
        method == "fork",
        "started inside the mode they inherit it and PyTorch's flag, but are not in its report",
        "they have neither the mode nor PyTorch's flag",
        "where workers compute: detmode.use_deterministic_algorithms(True) in worker_init_fn",
    )


def _threads() -> Iterator[Finding]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    asked = ", ".join(f"{name} {variable(name)}" for name in names)
    yield Finding(
        "CPU threads",
        f"{known.setting('torch.get_num_threads()')} ({asked})",
        "reductions on the CPU are split by the number of threads: another number, other bits",
        None
        if any(map(known.variable, names))
        else "for the same bits on machines with other core counts: export OMP_NUM_THREADS",
        "note",
    )
    for name, default in (("OMP_DYNAMIC", "false"), ("MKL_DYNAMIC", "true")):
        if name == "MKL_DYNAMIC" and not torch.backends.mkl.is_available():
            continue
        adjusts = (known.variable(name) or default).lower() not in ("false", "0")
        yield Finding.either(
            name,
            variable(name),
            not adjusts,
            "the number of threads is not lowered at run time",
            "the number of threads may be lowered at run time",
            f"export {name}=FALSE",
            "warning" if known.variable(name) else "note",
        )


def _cpu() -> Iterator[Finding]:
    level = torch.backends.cpu.get_cpu_capability()
    fixed = known.variable("ATEN_CPU_CAPABILITY")
    yield Finding(
        "CPU instructions",
        level,
        "ATen's CPU kernels add in another order with other vector instructions",
        None
        if fixed
        else "for the same bits on different CPUs: export ATEN_CPU_CAPABILITY=default (slower)",
        "note",
    )
    if torch.backends.mkl.is_available():
        value = known.variable("MKL_CBWR")
        yield Finding.either(
            "MKL_CBWR",
            value or "not set",
            value is not None,
            "MKL's code path is fixed",
            "MKL chooses its code by the CPU's model",
            "for the same bits on different CPUs: export MKL_CBWR=COMPATIBLE (slower)",
            "note",
        )


def _debugging() -> Iterator[Finding]:
    for name, effect in (
        ("CUDA_LAUNCH_BLOCKING", "every launch is waited for: slow, and no more deterministic"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "every allocation goes to the driver: slow"),
    ):
        value = known.variable(name)
        if value not in (None, "", "0"):
            yield Finding(name, str(value), effect, f"unset {name}")


LOOKS: tuple[Look, ...] = (_hash_seed, _python, _seeds, _workers, _threads, _cpu, _debugging)
