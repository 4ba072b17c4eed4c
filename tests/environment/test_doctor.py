"""The doctor's findings follow the settings."""

import ctypes
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import detmode
from detmode.environment.doctor import SEVERITIES, findings, processes, software
from tests.environment.findings import finding


def test_every_row_is_whole() -> None:
    """Each row has a subject of its own, a state and an effect."""
    rows = findings()
    assert len({row.subject for row in rows}) == len(rows) >= 20
    assert all(row.subject and row.state and row.effect and row.remedy != "" for row in rows)
    fields = [asdict(row) for row in rows]
    assert json.loads(json.dumps(fields)) == fields
    severities = [row.severity for row in rows]
    assert severities == sorted(severities, key=SEVERITIES.index)
    assert all(row.remedy for row in rows if row.severity != "note")


@pytest.mark.parametrize(
    ("variable", "value", "severity"),
    [
        ("PYTHONHASHSEED", "0", "note"),
        ("PYTHONHASHSEED", "", "warning"),
        ("PYTHONHASHSEED", "random", "error"),
        ("OMP_DYNAMIC", "true", "warning"),
        # What is for debugging has a row only where it is on.
        ("CUDA_LAUNCH_BLOCKING", "1", "warning"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "warning"),
        ("NVIDIA_TF32_OVERRIDE", "0", "warning"),
    ],
)
def test_severity(
    variable: str, value: str, severity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings by which runs certainly differ are errors; those by which they may are warnings."""
    monkeypatch.delenv(variable, raising=False)
    always = variable in ("PYTHONHASHSEED", "OMP_DYNAMIC")
    assert (variable in [each.subject for each in findings()]) == always
    monkeypatch.setenv(variable, value)
    found = finding(variable)
    assert found.severity == severity
    assert always or found.remedy == f"unset {variable}"


BAD = {
    "MKL_DYNAMIC": "TRUE",
    "NCCL_ALGO": "^Ring",
    "NCCL_COLLNET_ENABLE": "1",
    "NCCL_TUNER_PLUGIN": "fast",
    "NVIDIA_TF32_OVERRIDE": "1",
    "OMP_DYNAMIC": "TRUE",
    "PYTHONHASHSEED": "random",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
}
MAY_VARY = {
    *("CUBLAS_WORKSPACE_CONFIG", "cuDNN recurrent networks", "DataLoader workers", "PyTorch"),
    *("MKL_DYNAMIC", "NVIDIA_TF32_OVERRIDE", "OMP_DYNAMIC", "torch.compile (inductor)"),
    "fill_uninitialized_memory",
}
VARY_ON_A_GPU = {
    *("NCCL_ALGO", "NCCL_NVLS_ENABLE", "NCCL_COLLNET_ENABLE", "NCCL_TUNER_PLUGIN", "GPU models"),
    "CUDA kernels (CuPy, NVRTC, driver)",
}
VARY = {"PYTHONHASHSEED", "python -E or -I"}


@pytest.mark.parametrize("has_gpu", [False, True])
def test_severities(has_gpu: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of settings that are all bad, those by which runs can vary are warnings, the rest notes.

    What only a GPU or NCCL does is a note without a GPU. A fault of one row is not hidden by
    another's.
    """
    for name in {variable for variable, *_ in ENVIRONMENT}:
        monkeypatch.delenv(name, raising=False)
    for name, value in BAD.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "nccl.conf").touch()
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "nccl.conf"))
    monkeypatch.delitem(sys.modules, "torch._inductor.config", raising=False)
    monkeypatch.setattr(torch, "__version__", "2.7.1")
    monkeypatch.delattr(torch.library, "get_kernel", raising=False)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(software, "_gpu_names", lambda count: ["NVIDIA A", "NVIDIA B"])
    monkeypatch.setattr(software.cuda, "unavailable", lambda device: "there is none")
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "spawn")
    isolated = SimpleNamespace(flags=SimpleNamespace(ignore_environment=1))
    monkeypatch.setattr(processes, "sys", isolated)
    rows = findings()
    errors, warnings, notes = (
        {row.subject for row in rows if row.severity == severity} for severity in SEVERITIES
    )
    subjects = {row.subject for row in rows}
    assert errors == VARY
    assert warnings == (MAY_VARY | (VARY_ON_A_GPU if has_gpu else set())) & subjects
    assert subjects >= MAY_VARY - {"MKL_DYNAMIC"}
    assert 'intercept="listed"' in notes


@pytest.mark.parametrize("is_set", [False, True])
def test_what_is_a_default_is_a_note(is_set: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default of the machine is a note; the same value set by the user is a warning."""
    monkeypatch.delitem(sys.modules, "torch._inductor.config", raising=False)
    names = {"torch.compile (inductor)": "TORCHINDUCTOR_MAX_AUTOTUNE"}
    if torch.backends.mkl.is_available():
        names["MKL_DYNAMIC"] = "MKL_DYNAMIC"
    for name in names.values():
        monkeypatch.setenv(name, "1") if is_set else monkeypatch.delenv(name, raising=False)
    severities = {finding(subject).severity for subject in names}
    assert severities == {"warning" if is_set else "note"}


ENVIRONMENT = [
    ("CUBLAS_WORKSPACE_CONFIG", ":16:8", "CUBLAS_WORKSPACE_CONFIG", "not set"),
    ("PYTHONHASHSEED", "5", "PYTHONHASHSEED", "random"),
    ("NCCL_ALGO", "^NVLS,NVLSTree", "NCCL_ALGO", "^NVLS"),
    ("NCCL_ALGO", "Ring,Tree", "NCCL_ALGO", "allreduce:Ring"),
    ("NCCL_ALGO", "Ring,Tree", "NCCL_ALGO", "^Ring"),
    ("NCCL_NVLS_ENABLE", "0", "NCCL_NVLS_ENABLE", "1"),
    ("NCCL_COLLNET_ENABLE", "0", "NCCL_COLLNET_ENABLE", "1"),
    ("MKL_CBWR", "COMPATIBLE", "MKL_CBWR", None),
    ("MKL_DYNAMIC", "FALSE", "MKL_DYNAMIC", "TRUE"),
    ("OMP_DYNAMIC", "false", "OMP_DYNAMIC", "true"),
    ("OMP_NUM_THREADS", "1", "CPU threads", None),
    ("MKL_NUM_THREADS", "1", "CPU threads", None),
    ("ATEN_CPU_CAPABILITY", "default", "CPU instructions", None),
]


@pytest.mark.parametrize(("variable", "good", "subject", "bad"), ENVIRONMENT)
def test_environment(
    variable: str, good: str, subject: str, bad: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A good value needs no remedy; another one, or none, needs one that names the variable."""
    if variable.startswith("MKL_") and not torch.backends.mkl.is_available():
        pytest.skip("this PyTorch is built without MKL")
    for each in {name for name, *_ in ENVIRONMENT}:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(variable, good)
    assert finding(subject).remedy is None
    if bad is None:
        monkeypatch.delenv(variable)
    else:
        monkeypatch.setenv(variable, bad)
    found = finding(subject)
    assert variable in found.remedy or variable == "MKL_NUM_THREADS"
    assert bad is None or bad in found.state


def test_choices_of_nccl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Variables that change them are shown, and the files and plugins from which others come."""
    subjects = ("NCCL_TUNER_PLUGIN", "NCCL's configuration")
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "nccl.conf"))
    monkeypatch.delenv("NCCL_TUNER_PLUGIN", raising=False)
    assert {each.subject for each in findings()}.isdisjoint(subjects)
    (tmp_path / "nccl.conf").touch()
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", "fast")
    monkeypatch.setenv("NCCL_MAX_NCHANNELS", "4")
    assert finding(subjects[0]).state == "fast"
    assert str(tmp_path) in finding(subjects[1]).state
    assert "NCCL_MAX_NCHANNELS 4" in finding("NCCL's protocol and channels").state
    monkeypatch.setenv("NCCL_COLLNET_ENABLE", "1")
    assert finding("NCCL_COLLNET_ENABLE").remedy
    monkeypatch.setenv("NCCL_ALGO", "^CollNetDirect,CollNetChain")
    assert not finding("NCCL_COLLNET_ENABLE").remedy


def test_seeds_are_not_guessed() -> None:
    """A seeded program looks as one that is not; the row says so, and the remedies exist."""
    before = finding("seeds")
    state = detmode.rng_state()
    detmode.seed_everything(0)
    assert finding("seeds") == before
    detmode.set_rng_state(state)
    assert "cannot be told" in before.effect
    for subject in ("seeds", "DataLoader generators"):
        remedy = str(finding(subject).remedy)
        assert any(f"detmode.{name}(" in remedy for name in detmode.__all__)


def test_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start method is read, and not fixed by reading it."""
    fixed = multiprocessing.get_start_method(allow_none=True)
    finding("DataLoader workers")
    assert multiprocessing.get_start_method(allow_none=True) == fixed
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "fork")
    assert finding("DataLoader workers").remedy is None
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: None)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn", "fork"])
    assert finding("DataLoader workers").state == "started by spawn"
    assert "neither the mode" in finding("DataLoader workers").effect


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is PyTorch's, not the variable's."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert finding("CPU threads").state.startswith("77 (")


class Driver:
    """A CUDA driver with two GPUs of different models."""

    names = (b"NVIDIA A", b"NVIDIA B")

    def __init__(self, library: str) -> None:
        self.library = library

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, length: int, device: ctypes.c_int) -> int:
        name.value = self.names[device.value]
        return 0


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs are named by the driver, without a context; different models have a row of their own."""

    def no_context(*arguments: object) -> None:
        raise AssertionError("the doctor initialised CUDA")

    monkeypatch.setattr(torch.cuda, "_lazy_init", no_context)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(software.cuda, "unavailable", lambda device: None)
    monkeypatch.setattr(software.ctypes, "CDLL", Driver)
    rows = {row.subject: row for row in software.LOOKS[1]()}
    assert rows["GPU"].state == "NVIDIA A, NVIDIA B"
    assert rows["GPU models"].remedy == "choose one model with CUDA_VISIBLE_DEVICES"


def test_gpus_without_the_driver_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs are counted if the driver cannot be asked."""

    def missing(library: str) -> None:
        raise OSError(library)

    monkeypatch.setattr(software.ctypes, "CDLL", missing)
    assert software._gpu_names(2) == ["of unknown model"] * 2


STARTED = """
import ctypes, multiprocessing, os, sys, torch, detmode
from detmode.doctor import findings
def state(subject):
    print(*[each.state for each in findings() if each.subject == subject])
before = set(sys.modules)
findings()
print(*[name for name in set(sys.modules) - before if "inductor" in name or "." not in name])
assert not torch.cuda.is_initialized()
assert multiprocessing.get_start_method(allow_none=True) is None
if os.name == "posix":
    ctypes.CDLL(None).setenv(b"NCCL_ALGO", b"^NVLS", 1)
    state("NCCL_ALGO")
subject = "float32 precision"
state(subject)
torch.set_float32_matmul_precision("high"); state(subject)
torch.set_float32_matmul_precision("highest"); torch.backends.cudnn.allow_tf32 = False
state(subject)
if hasattr(torch.backends.cudnn, "conv"):
    torch.backends.cudnn.conv.fp32_precision = "tf32"; state(subject)
    torch.backends.cuda.matmul.fp32_precision = "tf32"; state(subject)
"""


def test_a_process_of_its_own(run_python: Callable[..., Any]) -> None:
    """Looking changes neither CUDA's state nor the start method, and imports nothing heavy.

    NCCL_ALGO is read where PyTorch sets it, past Python's os.environ. Of the precision the older
    functions and the newer settings are both read, in any mixture, which PyTorch does not let be
    put back.
    """
    printed = run_python("-W", "ignore", "-c", STARTED)
    assert printed.returncode == 0, printed.stderr
    imported, *nccl_and_precision = printed.stdout.splitlines()
    heavy = {"torch._inductor.config", "sympy", "triton"}
    heavy |= set() if torch.cuda.is_available() else {"cupy"}
    assert heavy.isdisjoint(imported.split())
    expected = [
        "^NVLS",
        "matmul float32, convolution tf32, RNN tf32",
        "matmul tf32, convolution tf32, RNN tf32",
        "matmul float32, convolution float32, RNN float32",
        "matmul float32, convolution tf32, RNN float32",
        "matmul tf32, convolution tf32, RNN float32",
    ][os.name != "posix" : 6 if hasattr(torch.backends.cudnn, "conv") else 4]
    assert nccl_and_precision == expected


def test_packages_that_no_mode_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package whose kernels pass by the dispatcher is a note with its remedy."""
    (tmp_path / "transformer_engine.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = software.LOOKS[-1]()
    assert (found.subject, found.severity) == ("transformer_engine", "note")
    assert "NVTE_ALLOW_NONDETERMINISTIC_ALGO=0" in str(found.remedy)
