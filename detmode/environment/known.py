"""The environment variables and the settings of PyTorch that change bits, or how they are made.

The doctor judges them, a lock keeps them, and a recording has a lock beside it: the names stand
here alone.
"""

from __future__ import annotations

import os
from operator import attrgetter
from typing import TypeAlias

import torch

from detmode.environment.inductor import OPTIONS, value_of

Choice: TypeAlias = bool | int | float | str | list[str]
"""A choice as a lock keeps it."""

VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "MKL_CBWR",
    "MKL_DYNAMIC",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_DYNAMIC",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_COMPILE_DISABLE",
    "TORCH_COMPILE_JOB_ID",
    "TORCH_LINALG_PREFER_CUSOLVER",
    "TORCH_LINALG_PREFER_MAGMA",
)
PREFIXES = (
    "NCCL_",
    "PYTORCH_TUNABLEOP_",
    "TORCHINDUCTOR_",
    "TORCH_CUDNN_",
    "TORCH_NCCL_",
    "TRITON_",
)
"""Beginnings of the names of more variables, of which newer versions add some."""

_ENDINGS_WITHOUT_EFFECT = ("_CACHE_DIR", "_DEBUG", "_DEBUG_FILE", "_DEBUG_SUBSYS", "_DUMP_DIR")
"""Endings of names with these beginnings that say what is written, and to which place."""

SETTINGS = {
    "torch.are_deterministic_algorithms_enabled()": "torch.use_deterministic_algorithms({})",
    "torch.is_deterministic_algorithms_warn_only_enabled()": (
        "torch.use_deterministic_algorithms(True, warn_only={})"
    ),
    "torch.utils.deterministic.fill_uninitialized_memory": "",
    "torch.get_default_dtype()": "torch.set_default_dtype({})",
    "torch.get_num_threads()": "torch.set_num_threads({})",
    "torch.backends.cudnn.allow_tf32": "",
    "torch.backends.cudnn.benchmark": "",
    "torch.backends.cudnn.benchmark_limit": "",
    "torch.backends.cudnn.conv.fp32_precision": "",
    "torch.backends.cudnn.deterministic": "",
    "torch.backends.cudnn.enabled": "",
    "torch.backends.cudnn.rnn.fp32_precision": "",
    "torch.backends.cuda.cudnn_sdp_enabled()": "torch.backends.cuda.enable_cudnn_sdp({})",
    "torch.backends.cuda.flash_sdp_enabled()": "torch.backends.cuda.enable_flash_sdp({})",
    "torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()": (
        "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp({})"
    ),
    "torch.backends.cuda.math_sdp_enabled()": "torch.backends.cuda.enable_math_sdp({})",
    "torch.backends.cuda.mem_efficient_sdp_enabled()": (
        "torch.backends.cuda.enable_mem_efficient_sdp({})"
    ),
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": "",
    "torch.backends.cuda.matmul.allow_fp16_accumulation": "",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": "",
    "torch.backends.cuda.matmul.fp32_precision": "",
    "torch.backends.cuda.preferred_blas_library()": "torch.backends.cuda.preferred_blas_library",
    "torch.backends.cuda.preferred_linalg_library()": (
        "torch.backends.cuda.preferred_linalg_library"
    ),
    "torch.backends.mha.get_fastpath_enabled()": "torch.backends.mha.set_fastpath_enabled({})",
    "torch.backends.mkldnn.deterministic": "",
    "torch.backends.mkldnn.enabled": "",
    "torch.backends.mkldnn.matmul.fp32_precision": "",
    "torch.backends.opt_einsum.enabled": "",
    "torch.backends.opt_einsum.strategy": "",
    "torch.cuda.tunable.is_enabled()": "torch.cuda.tunable.enable({})",
    "torch.cuda.tunable.tuning_is_enabled()": "torch.cuda.tunable.tuning_enable({})",
    "torch.get_float32_matmul_precision()": "torch.set_float32_matmul_precision({})",
}
"""Each setting by the expression that reads it, and the one that sets it; "" is an assignment."""

_BEFORE_2_9 = ("torch.backends.cudnn.allow_tf32", "torch.get_float32_matmul_precision()")
"""Replaced by ``fp32_precision``; they raise, or warn, where a program has used that."""


def variable(name: str) -> str | None:
    """Return an environment variable of the list, ``None`` if it is not set."""
    assert is_known(name), f"add {name} to detmode.environment.known.VARIABLES"
    return os.environ.get(name)


def is_known(name: str) -> bool:
    """Return whether a variable is one of the list."""
    return name in VARIABLES or (
        name.startswith(PREFIXES) and not name.endswith(_ENDINGS_WITHOUT_EFFECT)
    )


def variables() -> dict[str, Choice]:
    """Return the variables of the list that are set."""
    # Bytes that are no text stand in a value as surrogates, which no file may have.
    return {
        name: value.encode(errors="backslashreplace").decode()
        for name, value in os.environ.items()
        if is_known(name)
    }


def setting(name: str) -> Choice | None:
    """Return a setting of the list; ``None`` where this PyTorch does not have it.

    Nothing is imported, and CUDA is not initialized.
    """
    assert name in SETTINGS, f"add {name} to detmode.environment.known.SETTINGS"
    if name in _BEFORE_2_9 and hasattr(torch.backends.cudnn, "conv"):
        return None
    path = name.removeprefix("torch.")
    try:
        value = attrgetter(path.removesuffix("()"))(torch)
        return _plain(value() if path.endswith("()") else value)
    except (AttributeError, AssertionError, RuntimeError, TypeError):
        return None  # a build without CUDA lacks some; PyTorch's classes raise for unknown names


def settings() -> dict[str, Choice]:
    """Return the settings of the list that this PyTorch has."""
    return _given({name: setting(name) for name in SETTINGS})


def compiler_options() -> dict[str, Choice]:
    """Return Inductor's options with which timing would decide bits; none before it is loaded."""
    return _given(
        {f"{option.module}.{option.name}": _plain(value_of(option)) for option in OPTIONS}
    )


def _given(values: dict[str, Choice | None]) -> dict[str, Choice]:
    return {name: value for name, value in values.items() if value is not None}


def how_to_set(name: str, value: Choice) -> str:
    """Return the statement that gives a setting a value."""
    statement = SETTINGS.get(name, "")
    if not statement:
        return f"{name} = {value!r}"
    if "{}" not in statement:
        return f"{statement}({str(value).lower()!r})"
    is_dtype = isinstance(value, str) and value.startswith("torch.")
    return statement.format(value if is_dtype else repr(value))


def _plain(value: object) -> Choice | None:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "name", None) or str(value)
