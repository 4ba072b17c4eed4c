"""Raising what ATen raises for a call's arguments, before a substitute runs in its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch

from detmode.cuda.undo import Calls
from detmode.environment.settings import deterministic_flag
from detmode.table.variants import out_names

validations = Calls()
"""Calls of shape functions, in which alerts in Python mean nothing."""

_valid: set[tuple[Any, ...]] = set()
_ABOUT_INDICES = (
    "Index should have dimension 1 or 0",
    "index_copy_(): Number of indices",
    "index_copy_(): When source and destination are not scalars",
)


def validate(func: torch._ops.OpOverload, arguments: Mapping[str, Any]) -> None:
    """Raise the error that ATen raises for these arguments, before a substitute runs in its place.

    ATen's own checks run on meta tensors of the same shapes, strides and dtypes; what passed once
    is remembered by them.

    Raises:
        Exception: ATen's, with its own type and words.
    """
    key = (func, _shapes_of(arguments.values()))
    if key in _valid:
        return
    outputs = out_names(func)
    # Without a meta kernel, or where one would need the data, the launcher checks.
    with torch._C._DisableTorchDispatch(), suppress(NotImplementedError):
        metas = {name: _to_meta(value, name in outputs) for name, value in arguments.items()}
        try:
            _run_shape_function(func, metas)
        except AssertionError as error:
            # Older meta functions assert what ATen's kernels check.
            kind = IndexError if "out of bounds" in str(error) else RuntimeError
            raise kind(str(error)) from error
        except ValueError as error:
            # A Python meta function that unpacks a list of a wrong length: the launcher checks it.
            if "values to unpack" not in str(error):
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
    if len(_valid) >= 1 << 13:
        _valid.clear()
    _valid.add(key)


def _run_shape_function(func: torch._ops.OpOverload, metas: Mapping[str, Any]) -> None:
    try:
        validations.made(func)(**metas)
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
        if isinstance(value, torch.Tensor):
            shapes.append((value.shape, value.stride(), value.dtype))
        elif isinstance(value, (list, tuple)):
            shapes.append(_shapes_of(value))
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
