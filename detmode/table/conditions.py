"""The conditions that rows have, by name; they join with ``&``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import torch

from detmode.cuda.dtypes import COMPLEX as COMPLEX
from detmode.cuda.dtypes import FLOATING as FLOATING
from detmode.cuda.dtypes import INTEGRAL as INTEGRAL
from detmode.cuda.dtypes import REDUCED as REDUCED
from detmode.environment import nccl
from detmode.process.setting import FILL, is_flag_on
from detmode.process.versions import parse_version
from detmode.table.call import Call
from detmode.table.condition import ALWAYS as ALWAYS
from detmode.table.condition import Condition, by_name, unnamed
from detmode.table.reductions import has_an_order

__all__ = [
    "ALWAYS",
    "COMPLEX",
    "FLOATING",
    "INTEGRAL",
    "REDUCED",
    "Condition",
    "argument",
    "argument_given",
    "bias_of",
    "causal_conv1d_adds_by_atomics",
    "cublas_workspace_unset",
    "decided",
    "deterministic_flag",
    "dtype_in",
    "fill_uninitialized_memory",
    "filled_by_pytorch",
    "has_strides",
    "lies_along",
    "nonempty",
    "nvls_possible",
    "on",
    "quantized",
    "requires_grad",
    "result_dtype_in",
    "row_major",
    "single",
    "sparse",
    "sparse_by_dense",
    "uneven_windows",
]


def __dir__() -> list[str]:
    return __all__


_NAMES = {REDUCED: "REDUCED", FLOATING: "FLOATING", COMPLEX: "COMPLEX", INTEGRAL: "INTEGRAL"}
_NAMES[FLOATING + COMPLEX] = "FLOATING + COMPLEX"
_NAMES[FLOATING + INTEGRAL] = "FLOATING + INTEGRAL"


def _name_of(dtypes: tuple[torch.dtype, ...]) -> str:
    return _NAMES.get(dtypes) or "[" + ", ".join(str(dtype) for dtype in dtypes) + "]"


@by_name
def on(*device_types: str) -> Condition:
    """The call has a tensor on one of ``device_types``, or creates one there."""
    # One comparison where one will do: this condition is asked of every listed call.
    if len(device_types) == 1:
        return unnamed(lambda call: device_types[0] in call.device_types, devices=device_types)
    return unnamed(
        lambda call: not call.device_types.isdisjoint(device_types), devices=device_types
    )


def _of_tensors(holds: Callable[..., bool], *names: str) -> Condition:
    """Return the condition that all arguments ``names`` are tensors and that ``holds`` of them."""
    first, *others = names

    def hold(call: Call) -> bool:
        tensor = call.arguments.get(first)
        if not isinstance(tensor, torch.Tensor):
            return False
        # Of one tensor, which is the rule, no list is made.
        if not others:
            return holds(tensor)
        more = [call.arguments.get(name) for name in others]
        return all(isinstance(value, torch.Tensor) for value in more) and holds(tensor, *more)

    return unnamed(hold, names)


@by_name
def requires_grad(name: str) -> Condition:
    """The tensor argument ``name`` requires grad, and grad mode is on."""
    return _of_tensors(lambda tensor: tensor.requires_grad and torch.is_grad_enabled(), name)


@by_name
def dtype_in(name: str, dtypes: Iterable[torch.dtype]) -> Condition:
    """The tensor argument ``name``, or a tensor of the list ``name``, has one of ``dtypes``."""
    dtypes = tuple(dtypes)

    def holds(call: Call) -> bool:
        value = call.arguments.get(name)
        if isinstance(value, torch.Tensor):
            return value.dtype in dtypes
        return isinstance(value, (list, tuple)) and any(
            isinstance(item, torch.Tensor) and item.dtype in dtypes for item in value
        )

    return Condition(f"dtype_in({name!r}, {_name_of(dtypes)})", holds, (name,), dtypes)


@by_name
def result_dtype_in(name: str, dtypes: Iterable[torch.dtype]) -> Condition:
    """The result of a scan of ``name`` (its ``dtype``, or that of ``out``) is in ``dtypes``."""
    dtypes = tuple(dtypes)

    def holds(call: Call) -> bool:
        dtype = call.arguments.get("dtype")
        if dtype is None:
            tensor = call.arguments.get("out", call.arguments.get(name))
            dtype = tensor.dtype if isinstance(tensor, torch.Tensor) else None
        return dtype in dtypes

    text = f"result_dtype_in({name!r}, {_name_of(dtypes)})"
    return Condition(text, holds, (name,), dtypes)


@by_name
def argument(name: str, *values: object) -> Condition:
    """The argument ``name`` equals one of ``values``."""
    return unnamed(lambda call: call.arguments.get(name) in values, (name,))


@by_name
def argument_given(name: str) -> Condition:
    """The optional argument ``name`` is not ``None``."""
    return unnamed(lambda call: call.arguments.get(name) is not None, (name,))


def decided(condition: bool | torch.SymBool, *, otherwise: bool) -> bool:
    """Return ``condition``, or ``otherwise`` if it depends on a size unknown while tracing."""
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true

    return guard_or_true(condition) if otherwise else guard_or_false(condition)


@by_name
def nonempty(name: str) -> Condition:
    """The tensor argument ``name`` has elements."""
    return _of_tensors(lambda tensor: decided(tensor.numel() > 0, otherwise=True), name)


@by_name
def single(name: str) -> Condition:
    """The tensor argument ``name`` has one element."""
    return _of_tensors(lambda tensor: decided(tensor.numel() == 1, otherwise=False), name)


@by_name
def quantized(name: str) -> Condition:
    """The tensor argument ``name`` is quantized."""
    return _of_tensors(lambda tensor: tensor.is_quantized, name)


_UNFILLED_DTYPES = frozenset(
    getattr(torch, name)
    for name in (
        *("quint8", "qint8", "qint32", "quint4x2", "quint2x4"),
        *("bits1x8", "bits2x4", "bits4x2", "bits8", "bits16", "float4_e2m1fn_x2"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
    )
    if hasattr(torch, name)
)


@by_name
def filled_by_pytorch(value: bool) -> Condition:
    """PyTorch fills new memory of the dtype: not of quantized, bit, 4-bit and smaller ones."""

    def holds(call: Call) -> bool:
        dtype = call.arguments.get("dtype")
        if dtype is None:
            likes = (call.arguments.get(name) for name in ("out", "self", "qtensor"))
            dtype = next((like.dtype for like in likes if isinstance(like, torch.Tensor)), None)
        return (dtype not in _UNFILLED_DTYPES) is value

    return unnamed(holds)


def has_strides(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has sizes and strides; sparse, nested and oneDNN ones lack some."""
    return tensor.layout is torch.strided and not tensor.is_nested


@by_name
def row_major(name: str) -> Condition:
    """The tensor argument ``name`` is contiguous, and not quantized."""

    def holds(tensor: torch.Tensor) -> bool:
        return has_strides(tensor) and not tensor.is_quantized and tensor.is_contiguous()

    return _of_tensors(holds, name)


_OF_ENTRIES = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


@by_name
def sparse(*names: str) -> Condition:
    """One of the tensor arguments ``names`` has a sparse layout (COO, CSR, CSC, BSR or BSC)."""

    def holds(call: Call) -> bool:
        values = [call.arguments.get(name) for name in names]
        return any(isinstance(v, torch.Tensor) and v.layout is not torch.strided for v in values)

    return unnamed(holds, names, needs_sparse=True)


@by_name
def sparse_by_dense(first: str, second: str) -> Condition:
    """Of two tensor arguments one is a sparse matrix (COO, CSR, CSC), the other is strided."""

    def holds(first: torch.Tensor, second: torch.Tensor) -> bool:
        matrix, dense = (first, second) if has_strides(second) else (second, first)
        return (
            matrix.layout in _OF_ENTRIES
            and matrix.dim() == 2
            and matrix.dense_dim() == 0
            and has_strides(dense)
            and not dense.is_quantized
        )

    return replace(_of_tensors(holds, first, second), needs_sparse=True)


@by_name
def lies_along(name: str, dim: str) -> Condition:
    """All elements of the tensor argument ``name`` lie along its dimension ``dim``."""

    def holds(call: Call) -> bool:
        tensor, axis = call.arguments.get(name), call.arguments.get(dim)
        if not isinstance(tensor, torch.Tensor) or not isinstance(axis, int):
            return False
        if not has_strides(tensor) or not -tensor.dim() <= axis < tensor.dim():
            return False
        numel = tensor.numel()
        if type(numel) is int:
            return numel > 1 and tensor.shape[axis] == numel
        return decided(numel > 1, otherwise=True) and decided(
            tensor.shape[axis] == numel, otherwise=True
        )

    return unnamed(holds, (name, dim))


@by_name
def deterministic_flag(value: bool) -> Condition:
    """PyTorch's flag is ``value`` when the call is made (a program may turn it off in a block)."""
    return unnamed(lambda call: is_flag_on() is value)


@by_name
def fill_uninitialized_memory(value: bool) -> Condition:
    """``torch.utils.deterministic.fill_uninitialized_memory`` is ``value``."""
    return unnamed(lambda call: FILL.chosen() is value)


@by_name
def uneven_windows(name: str, output: str) -> Condition:
    """One of the last three sizes of ``name`` is not a multiple of that of ``output``."""

    def holds(tensor: torch.Tensor, pooled: torch.Tensor) -> bool:
        return (has_strides(tensor) and has_strides(pooled)) and any(
            decided(small > 0, otherwise=True) and decided(large % small != 0, otherwise=True)
            for large, small in zip(tensor.shape[-3:], pooled.shape[-3:])
        )

    return _of_tensors(holds, name, output)


@by_name
def bias_of(name: str, matrix: str) -> Condition:
    """``name`` is a contiguous vector that is added to each row of a product with ``matrix``."""

    def holds(vector: torch.Tensor, mat: torch.Tensor) -> bool:
        return (
            has_strides(vector)
            and has_strides(mat)
            and vector.dim() == 1
            and mat.dim() == 2
            and vector.is_contiguous()
            and decided(vector.shape[0] == mat.shape[1], otherwise=False)
            and all(decided(size > 1, otherwise=False) for size in mat.shape)
        )

    return _of_tensors(holds, name, matrix)


@by_name
def cublas_workspace_unset(*accepted: str) -> Condition:
    """``CUBLAS_WORKSPACE_CONFIG`` is not in ``accepted``: by default ``:4096:8`` and ``:16:8``."""
    values = accepted or (":4096:8", ":16:8")

    def is_unset() -> bool:
        return os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in values

    return unnamed(lambda call: is_unset(), environment=is_unset)


@by_name
def causal_conv1d_adds_by_atomics() -> Condition:
    """causal-conv1d is older than 1.6, or ``CAUSAL_CONV1D_DETERMINISTIC`` begins with ``0``."""
    installed = _version_of("causal-conv1d")
    is_older = installed is not None and installed < (1, 6)
    return unnamed(
        lambda call: is_older or os.environ.get("CAUSAL_CONV1D_DETERMINISTIC", "")[:1] == "0"
    )


def _version_of(package: str) -> tuple[int, int] | None:
    try:
        return parse_version(version(package))
    except PackageNotFoundError:
        return None


@by_name
def order_matters() -> Condition:
    """The collective adds, or multiplies, over more than two ranks; MAX and MIN have no order."""
    return unnamed(has_an_order)


@by_name
def nvls_possible() -> Condition:
    """The environment allows NCCL to reduce inside the NVLink switch (NVLS, NVLSTree)."""

    def holds(call: Call) -> bool:
        name = str(call.func).replace("_", "")
        function = next((reducing for reducing in nccl.REDUCING if reducing in name), None)
        return not nccl.nvls_is_excluded(function)

    return unnamed(holds)
