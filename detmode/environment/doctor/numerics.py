"""The settings that decide how a result is computed: libraries, precision, choices by timing."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

from detmode.environment import known
from detmode.environment.doctor.finding import Finding, Look, Severity, variable
from detmode.environment.inductor import OPTIONS, Option, value_of
from detmode.process.versions import parse_version

_FIXED_WORKSPACES = (":4096:8", ":16:8")


def _cublas() -> Iterator[Finding]:
    name = "CUBLAS_WORKSPACE_CONFIG"
    state = variable(name)
    yield Finding.either(
        name,
        state,
        state in _FIXED_WORKSPACES,
        "cuBLAS gives the same bits with several streams",
        "with several streams cuBLAS may vary; PyTorch 2.8 and 2.9 refuse matrix products",
        "`detmode run` sets it; elsewhere export CUBLAS_WORKSPACE_CONFIG=:4096:8 before Python "
        "starts",
    )


def _cudnn() -> Iterator[Finding]:
    deterministic, benchmark = (
        known.setting(f"torch.backends.cudnn.{name}") for name in ("deterministic", "benchmark")
    )
    state = f"deterministic={deterministic}, benchmark={benchmark}"
    yield Finding.either(
        "cuDNN",
        state,
        bool(deterministic) and not benchmark,
        "the same algorithm is chosen in every run",
        "outside the mode the algorithm, and so the bits, may vary between runs",
        "nothing to do under the mode, which sets deterministic=True and benchmark=False",
        "note",
    )


def _recurrent() -> Iterator[Finding]:
    subject = "cuDNN recurrent networks"
    try:
        version = torch.backends.cudnn.version()
    except RuntimeError as error:
        # The loaded cuDNN is not the one that PyTorch was built with.
        yield Finding(subject, "cuDNN does not load", str(error).splitlines()[0], "reinstall it")
        return
    workspace = variable("CUBLAS_WORKSPACE_CONFIG")
    state = "no cuDNN" if version is None else f"cuDNN {version}, workspace {workspace}"
    yield Finding.either(
        subject,
        state,
        version is None or workspace in (*_FIXED_WORKSPACES, ":4096:2"),
        "nn.RNN, nn.LSTM and nn.GRU "
        + ("do not run in cuDNN" if version is None else "have workspaces of their own"),
        "nn.RNN, nn.LSTM and nn.GRU vary on some versions; which ones is not documented",
        "export CUBLAS_WORKSPACE_CONFIG=:4096:8 before Python starts",
    )


def _precision() -> Iterator[Finding]:
    precisions = _float32_precisions()
    state = ", ".join(f"{name} {value}" for name, value in precisions.items())
    yield Finding.either(
        "float32 precision",
        state,
        set(precisions.values()) == {"float32"},
        "float32 is computed as float32",
        "TF32 and bfloat16 do not vary between runs, but GPUs with and without them give different "
        "bits",
        "for several GPU models: torch.set_float32_matmul_precision('highest') and "
        "torch.backends.cudnn.allow_tf32 = False",
        "note",
    )
    override = known.variable("NVIDIA_TF32_OVERRIDE")
    if override is not None:
        yield Finding(
            "NVIDIA_TF32_OVERRIDE",
            override,
            "cuBLAS and cuDNN follow it, whatever PyTorch's settings say",
            "unset NVIDIA_TF32_OVERRIDE",
        )


def _float32_precisions() -> dict[str, str]:
    before_2_9 = known.setting("torch.get_float32_matmul_precision()")
    if before_2_9 is not None:
        word = {"highest": "float32", "high": "tf32", "medium": "bf16"}
        allowed = known.setting("torch.backends.cudnn.allow_tf32")
        convolutions = "tf32" if allowed else "float32"
        return {
            "matmul": word[str(before_2_9)],
            "convolution": convolutions,
            "RNN": convolutions,
        }
    places = {"matmul": "cuda.matmul", "convolution": "cudnn.conv", "RNN": "cudnn.rnn"}
    read = {
        name: str(known.setting(f"torch.backends.{place}.fp32_precision"))
        for name, place in places.items()
    }
    return {name: "float32" if value in ("none", "ieee") else value for name, value in read.items()}


def _reductions() -> Iterator[Finding]:
    allowed = [
        name
        for name in (
            "allow_fp16_reduced_precision_reduction",
            "allow_bf16_reduced_precision_reduction",
            "allow_fp16_accumulation",
        )
        if known.setting(f"torch.backends.cuda.matmul.{name}")
    ]
    yield Finding.either(
        "float16 and bfloat16 matmul",
        ", ".join(allowed) or "sums are float32",
        not allowed,
        "sums are rounded once",
        "intermediate sums may be rounded: this does not vary between runs, but depends on the GPU "
        "and the size",
        "for accuracy, or several GPU models: set them to False in torch.backends.cuda.matmul",
        "note",
    )


def _tunable() -> Iterator[Finding]:
    on = _is_tunable("is_enabled()", "PYTORCH_TUNABLEOP_ENABLED", "0")
    tunes = on and _is_tunable("tuning_is_enabled()", "PYTORCH_TUNABLEOP_TUNING", "1")
    yield Finding.either(
        "TunableOp",
        "on, and tunes" if tunes else "on" if on else "off",
        not on,
        "matrix products are not chosen by timing",
        "matrix products are chosen by timing: every tuning may choose others, with other bits",
        "unset PYTORCH_TUNABLEOP_ENABLED, or tune once and set PYTORCH_TUNABLEOP_TUNING=0",
        "error" if tunes else "",
    )


def _is_tunable(name: str, variable: str, default: str) -> bool:
    # Only a build with CUDA has the setting itself.
    read = known.setting(f"torch.cuda.tunable.{name}")
    return (known.variable(variable) or default) == "1" if read is None else bool(read)


def _attention() -> Iterator[Finding]:
    names = {
        "flash": "flash",
        "memory-efficient": "mem_efficient",
        "cuDNN": "cudnn",
        "math": "math",
    }
    enabled = {
        name: known.setting(f"torch.backends.cuda.{backend}_sdp_enabled()")
        for name, backend in names.items()
    }
    fused = enabled["flash"] or enabled["memory-efficient"]
    effects = []
    if enabled["cuDNN"]:
        effects.append(
            "cuDNN's backward may vary, and is left out under PyTorch's strict flag only"
        )
    if fused:
        effects.append("flash and memory-efficient backward may vary outside the mode")
    yield Finding(
        "attention backends",
        ", ".join(name for name, on in enabled.items() if on) or "none",
        "; ".join(effects) or "matrix products and a softmax: as reproducible as these",
        "with warn_only and outside the mode: torch.backends.cuda.enable_cudnn_sdp(False)"
        if enabled["cuDNN"]
        else None,
        "note",
    )


def _fill() -> Iterator[Finding]:
    filled = known.setting("torch.utils.deterministic.fill_uninitialized_memory")
    effects = (
        "a program that reads uninitialised memory may vary",
        "DeterministicMode(fill_uninitialized_memory=True) shows whether yours does",
    )
    if filled:
        effects = (
            "under PyTorch's flag every torch.empty costs one write of its bytes; a program "
            "that reads uninitialised memory does not vary",
            "for a program that reads none: DeterministicMode(fill_uninitialized_memory=False)",
        )
    severity: Severity = "note" if filled else "warning"
    yield Finding("fill_uninitialized_memory", str(filled), *effects, severity)


def _compiler() -> Iterator[Finding]:
    timed = [
        candidate.name
        for candidate in OPTIONS
        if not candidate.by_default and _is(candidate, candidate.timed)
    ]
    (option,) = (candidate for candidate in OPTIONS if candidate.name == "deterministic")
    deterministic = _is(option, option.used)
    state = f"deterministic={deterministic}"
    version = parse_version(torch.__version__)
    if version < (2, 9):
        under_the_mode = "where functions run operator by operator, as PyTorch is older than 2.9"
    elif version < (2, 10):
        under_the_mode = "where PyTorch's flag does most of that; leave the others off"
    else:
        under_the_mode = "which turns it on"
    yield Finding.either(
        "torch.compile (inductor)",
        ", ".join([state, *(f"{name}=True" for name in timed)]),
        deterministic,
        "what would change the bits is not chosen by timing",
        "outside the mode kernels are chosen by timing: two compilations may give other bits",
        f"nothing to do under the mode, {under_the_mode}; elsewhere export "
        "TORCHINDUCTOR_DETERMINISTIC=1 (PyTorch 2.10 or newer)",
        "warning" if timed else "note",
    )


def _is(option: Option, value: object) -> bool:
    # inductor reads the variables when it is imported, which takes too long for a look.
    if option.module not in sys.modules:
        return known.variable(f"TORCHINDUCTOR_{option.name.upper()}") == "1"
    return bool(value_of(option) == value)


LOOKS: tuple[Look, ...] = (
    *(_cublas, _cudnn, _recurrent, _precision, _reductions, _tunable, _attention, _fill),
    _compiler,
)
