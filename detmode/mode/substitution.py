"""Running a substitute in place of a call: raising and delivering as ATen does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from detmode.mode.handled import Handled
from detmode.mode.overload_info import OverloadInfo
from detmode.process.arguments import SCALARS, tensors_in
from detmode.process.extent import extent_of
from detmode.process.memo import keep_bounded
from detmode.process.torch_settings import deterministic_flag
from detmode.process.undo import Calls
from detmode.table.rule import Substitute

__tracebackhide__ = True

validations = Calls()
"""Calls of shape functions, in which alerts in Python mean nothing."""

_HISTC_OUT = torch.ops.aten.histc.out
"""Its CUDA kernel copies the counts to any dtype; the CPU kernel refuses."""

_valid: dict[tuple[Any, ...], None] = {}
_MOST_VALID = 1 << 13
_SPARSE = object()
"""Stands for arguments without shapes to compare: a sparse tensor has no strides, and an object of
TorchScript's, such as packed weights, no ``__eq__``."""
_ABOUT_INDICES = (
    "Index should have dimension 1 or 0",
    "index_copy_(): Number of indices",
    "index_copy_(): When source and destination are not scalars",
)
_ABOUT_META_FUNCTIONS = ("values to unpack", "Expected a cuda device")
"""A Python meta function unpacks a list of a wrong length, or asks for the GPU of a tensor: the
launcher checks it."""


def validate(call: Handled) -> None:
    """Raise the error that ATen raises for a call, before a substitute runs in its place.

    ATen's own checks run on meta tensors of the same shapes, strides and dtypes; what passed once
    is remembered by them. Of a sparse tensor or a TorchScript object, the launcher checks all. The
    calls of compiled code were checked as it was traced.

    Raises:
        Exception: ATen's, with its own type and words.
    """
    if call.overload.twin is not None:
        return
    # What runs an overload is hashed sooner than the overload itself, which is in Python.
    key = (call.overload.run, _shapes_of(call.arguments.values()))
    if _SPARSE in key[1] or key in _valid:
        return
    outputs = call.signature.out_names
    # Without a meta kernel, or where one would need the data, the launcher checks.
    with torch._C._DisableTorchDispatch(), suppress(NotImplementedError):
        metas = {name: _to_meta(value, name in outputs) for name, value in call.arguments.items()}
        try:
            _run_shape_function(call.func, metas)
        except AssertionError as error:
            # Older meta functions assert what ATen's kernels check.
            kind = IndexError if "out of bounds" in str(error) else RuntimeError
            raise kind(str(error)) from error
        except ValueError as error:
            if not any(text in str(error) for text in _ABOUT_META_FUNCTIONS):
                raise
            return
        except RuntimeError as error:
            # An operator of torch.library.custom_op that has no fake implementation.
            if "no fake impl registered" in str(error):
                return
            # Python meta functions check by one type what ATen's kernels check by two.
            if any(text in str(error) for text in _ABOUT_INDICES):
                raise IndexError(str(error)) from error
            raise
        except TypeError as error:
            # A Python meta function that also serves an out variant, but does not take ``out``.
            if "keyword argument" not in str(error):
                raise
            return
    keep_bounded(_valid, key, None, _MOST_VALID)


def _run_shape_function(func: torch._ops.OpOverload, metas: Mapping[str, Any]) -> None:
    try:
        validations.run(func, **metas)
    except RuntimeError as error:
        if "does not have a deterministic implementation" not in str(error):
            raise
    else:
        return
    # An alert in C++, where the flag alone is asked.
    with deterministic_flag(False):
        func(**metas)


def _shapes_of(values: Iterable[Any]) -> tuple[Any, ...]:
    shapes: list[Any] = []
    for value in values:
        if type(value) in SCALARS:
            shapes.append((type(value), value))
        elif isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                return (_SPARSE,)
            shapes += (value.shape, value.stride(), value.dtype)
        elif isinstance(value, (list, tuple)):
            shapes.append(_shapes_of(value))
        elif isinstance(value, torch.ScriptObject):
            return (_SPARSE,)
        else:
            shapes.append((type(value), value))
    return tuple(shapes)


def _to_meta(value: Any, is_output: bool = False) -> Any:
    if isinstance(value, torch.Tensor):
        if is_output:
            # An empty one is resized without a warning; the real one is yet to give it.
            return torch.empty(0, dtype=value.dtype, device="meta")
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return [_to_meta(item) for item in value]
    return value


def run_validated(call: Handled) -> Any:
    """Make a call by its substitute, as :func:`run_substitute` does, if ATen accepts the arguments.

    Raises:
        Exception: ATen's, with its own type and words, for others.
    """
    rule: Any = call.rule
    action, overload, arguments = rule.action, call.overload, call.arguments
    # A result that is delivered afterwards may not fit: there the launcher comes too early.
    if not action.raises_like_aten or not (
        overload.variant == "functional" or (overload.variant == "inplace" and action.takes_out)
    ):
        validate(call)
        return run_substitute(action, overload, arguments)
    try:
        return run_substitute(action, overload, arguments)
    except Exception as error:
        refused = error
    try:
        # Of what both refuse, the words are ATen's.
        validate(call)
        raise refused
    finally:
        # The error has this frame, which would keep it and its tensors alive.
        del refused


def run_unvalidated(call: Handled, /, *args: Any, **kwargs: Any) -> Any:
    """Make a call by its substitute; an observer may make it again on other tensors."""
    rule: Any = call.rule
    return run_substitute(rule.action, call.overload, call.signature.bind(args, kwargs))


def run_substitute(action: Substitute, overload: OverloadInfo, arguments: dict[str, Any]) -> Any:
    """Call a substitute for an overload and deliver the result as the variant does.

    Its function takes the functional operator's arguments and writes to ``out`` if it has that
    keyword; ``arguments`` include ``out`` arguments.

    Raises:
        RuntimeError: as in ATen, a written tensor has another dtype than the result, shares memory
            with an input, or has elements that share memory, where the value that stays would vary.
    """
    function, variant = action.function, overload.variant
    if variant == "functional":
        return function(**arguments)
    func = overload.func
    names = overload.signature.out_names or ("self",)
    target = arguments[names[0]]
    if arguments.get("dtype", ...) is None:
        # Reductions and scans use the dtype of the tensor that they write.
        arguments = {**arguments, "dtype": target.dtype}
    # Compiled code writes in place only where no input shares the memory.
    if overload.twin is None and overload.forbids_overlap:
        _check_no_overlap(target, arguments, names)
    if variant == "inplace":
        _check_written(target)
        if action.takes_out:
            function(**arguments, out=target)
        else:
            result = function(**arguments)
            _check_dtype(func, result, target)
            target.copy_(result)
        return target
    targets = [arguments[name] for name in names]
    results = function(**{name: arguments[name] for name in arguments if name not in names})
    results = results if isinstance(results, tuple) else (results,)
    for target, result in zip(targets, results):
        _check_dtype(func, result, target)
    for target, result in zip(targets, results):
        if target.shape != result.shape or target.device != result.device:
            # Resizes, with ATen's warning and checks.
            torch.ops.aten.clone.out(result.to(target.dtype), out=target)
        else:
            _check_written(target)
            target.copy_(result)
    return targets[0] if len(targets) == 1 else tuple(targets)


@functools.cache
def _host_kernels() -> dict[str, Callable[..., Any]]:
    from detmode.rules import families  # all are imported with the first mode

    kernels: dict[str, Callable[..., Any]] = {}
    for family in families().values():
        kernels.update(getattr(family, "ON_HOST", {}))
    return kernels


def on_host(overload: OverloadInfo, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes calls on the CPU as on CUDA: for some operators ATen lacks a CPU kernel."""
    function = _host_kernels().get(overload.func._schema.name)
    if function is None:
        return run
    kernel = Substitute(function, launches=False)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except NotImplementedError as missing:
            try:
                return run_substitute(kernel, overload, overload.signature.bind(args, kwargs))
            except NotImplementedError:
                raise missing from None

    return call


def _check_written(target: torch.Tensor) -> None:
    """Refuse a tensor whose elements share memory; ATen's kernels only notice expanded ones."""
    if not target.is_contiguous() and _shares_memory(target.shape, target.stride()):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location. Please clone() the tensor before performing the operation."
        )


def _shares_memory(shape: Sequence[int], strides: Sequence[int]) -> bool:
    reach = 0
    for stride, size in sorted(zip(strides, shape)):
        if size > 1 and stride <= reach:
            break
        reach += stride * (size - 1)
    else:
        return False
    # Interleaved strides, from as_strided: check every address.
    with _disable_current_modes():
        offsets = torch.zeros(1, dtype=torch.int64, device="cpu")
        for stride, size in zip(strides, shape):
            steps = torch.arange(size, device="cpu") * stride
            offsets = (offsets[:, None] + steps).flatten()
        distinct: int = offsets.unique().numel()
    return distinct < offsets.numel()


def _check_dtype(func: torch._ops.OpOverload, result: torch.Tensor, target: torch.Tensor) -> None:
    """Refuse a written tensor with a dtype other than the result's, as ATen's kernels do.

    Pointwise operators may cast to a dtype of the same or a wider kind.
    """
    if target.dtype == result.dtype or (func is _HISTC_OUT and target.is_cuda):
        return
    if torch.Tag.pointwise in func.tags and torch.can_cast(result.dtype, target.dtype):
        return
    raise RuntimeError(
        f"Expected out tensor to have dtype {result.dtype}, but got {target.dtype} instead"
    )


def _check_no_overlap(
    target: torch.Tensor, arguments: Mapping[str, Any], written: Sequence[str]
) -> None:
    """Refuse an input that shares memory with ``target``, unless ``self`` is the same tensor."""
    values = [arguments[name] for name in arguments if name not in ("self", *written)]
    # Sparse tensors have no storage of their own, and ATen does not check theirs.
    read = [tensor for tensor in tensors_in(values) if tensor.layout is torch.strided]
    if "self" not in written and not target.is_set_to(arguments["self"]):
        read.append(arguments["self"])
    if any(_overlap(target, tensor) for tensor in read):
        raise RuntimeError(
            "unsupported operation: some elements of the input tensor and the written-to tensor "
            "refer to a single memory location. Please clone() the tensor before performing the "
            "operation."
        )


def _overlap(target: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Return whether two dense tensors share memory; ATen does not check others."""
    if target.untyped_storage()._cdata != tensor.untyped_storage()._cdata:
        return False
    if not (target.numel() and tensor.numel() and _is_dense(target) and _is_dense(tensor)):
        return False
    (start, end), (first, last) = extent_of(target), extent_of(tensor)
    return start < last and first < end


def _is_dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
