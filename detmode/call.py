"""One aten call with its arguments by schema name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from detmode.blocks import Calls
from detmode.settings import flag
from detmode.variants import out_names

if TYPE_CHECKING:
    from detmode.sites import Place


class Signature:
    """The names and defaults of an ``OpOverload``'s arguments, read from its schema once."""

    __slots__ = ("defaults", "names")

    def __init__(self, func: torch._ops.OpOverload) -> None:
        arguments = func._schema.arguments
        self.names = tuple(argument.name for argument in arguments)
        # An argument without a default is None until the call gives it.
        self.defaults = {argument.name: argument.default_value for argument in arguments}

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
        """``args`` and ``kwargs`` as one dict by schema name, defaults filled, in schema order."""
        bound = self.defaults.copy()
        bound.update(zip(self.names, args))
        if kwargs:
            bound.update(kwargs)
        return bound


class Call:
    """An ``OpOverload`` and its bound arguments, as the conditions see them.

    Args:
        func: the overload that was called.
        arguments: by schema name, defaults filled.
        pretend: a device type; CPU and meta tensors then count as tensors on that device.
    """

    __slots__ = ("arguments", "device_types", "func", "place", "pretend", "tensors")

    def __init__(
        self, func: torch._ops.OpOverload, arguments: dict[str, Any], pretend: str | None = None
    ) -> None:
        self.func = func
        self.arguments = arguments
        self.pretend = pretend
        self.place: Place | None = None
        """Where it is made, once that has been looked up."""
        self.tensors = tensors_in(arguments.values())
        """All tensor arguments, those in lists too."""
        self.device_types: set[str] = set()
        """The device types of the tensor arguments; without any, of the tensor to be made."""
        for tensor in self.tensors:
            # The properties are several times quicker than tensor.device.type.
            if tensor.is_cuda:
                self.device_types.add("cuda")
            elif tensor.is_cpu:
                self.device_types.add(pretend or "cpu")
            elif tensor.is_meta:
                self.device_types.add(pretend or "meta")
            else:
                self.device_types.add(tensor.device.type)
        if not self.tensors:
            device = arguments.get("device")
            made_on = torch.device(device).type if device else "cpu"
            if pretend is not None and made_on in ("cpu", "meta"):
                made_on = pretend
            self.device_types.add(made_on)


_SCALARS = frozenset({int, float, bool, str, type(None)})


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among ``values``, and in lists and tuples among them, nested ones too."""
    found = []
    for value in values:
        # isinstance is slow for what is no tensor.
        if type(value) in _SCALARS:
            continue
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found


validations = Calls()
"""Calls of shape functions, in which alerts in Python mean nothing."""

_valid: set[tuple[Any, ...]] = set()
_ABOUT_INDICES = (
    "Index should have dimension 1 or 0",
    "index_copy_(): Number of indices",
    "index_copy_(): When source and destination are not scalars",
)


def validate(func: torch._ops.OpOverload, arguments: Mapping[str, Any]) -> None:
    """Raise what ATen raises for these arguments, before a substitute runs in its place.

    ATen's own checks run on meta tensors of the same shapes, strides and dtypes; what passed once
    is remembered by them.

    Raises:
        Exception: ATen's, with its own type and words.
    """
    key = (func, *(_shape_of(value) for value in arguments.values()))
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
    with flag(False):
        func(**metas)


def _shape_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(_shape_of(item) for item in value)
    return type(value), value


def _to_meta(value: Any, is_output: bool = False) -> Any:
    if isinstance(value, torch.Tensor):
        if is_output:
            # An empty one is resized without a warning; the real one is yet to give it.
            return torch.empty(0, dtype=value.dtype, device="meta")
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return [_to_meta(item) for item in value]
    return value
