"""Repeating a piece of work from the same state, and describing how the results differ."""

from __future__ import annotations

import dataclasses
import inspect
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from detmode.bits.difference import gaps, unequal
from detmode.bits.tensors import dtype_and_shape, parts
from detmode.cuda.elements import in_memory
from detmode.environment.seeding import rng_state, set_rng_state
from detmode.process.dispatch import without_modes
from detmode.process.files import temporary_folder
from detmode.runs.comparison import Comparison
from detmode.runs.diff import diff_traces
from detmode.runs.recording import UNSAID, record

_TEXTS = (bool, int, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.Size)
_BEGUN = "the runs begin with objects that differ; make these inside the run, or copy them:"
_SHOWN = 5
"""The number of differing values that a message lists."""

Repeat = Callable[[int, AbstractContextManager[object]], object]
Values = dict[str, Any]
"""Values by path: CPU copies of tensors, and values that compare with ``==``."""


def remember_generators() -> Callable[[], None]:
    """Return a function that restores the current state of every global generator."""
    if torch.cuda.is_available():
        # A run may be the first to use CUDA, whose generators must then start alike.
        torch.cuda.init()
    return partial(set_rng_state, rng_state())


def snapshot(value: Any, name: str, *, strict: bool = True, grads: bool = False) -> Values:
    """Copy the tensors, arrays and numbers in a container, by their paths in it.

    Args:
        value: a tensor, an array, a module, a number, a text, or a list, tuple, mapping or
            dataclass of such.
        name: the name of ``value`` in paths.
        strict: raise for a value of another type instead of skipping it.
        grads: also copy the ``.grad`` of each leaf tensor.

    Raises:
        TypeError: with ``strict``, for a value that cannot be compared bit for bit.
    """
    copies: Values = {}
    with without_modes(), torch.no_grad():
        for path, leaf in _walk(value, name):
            if isinstance(leaf, Tensor):
                copies.update(_copies(path, leaf, strict))
                if grads and leaf.is_leaf and leaf.grad is not None:
                    copies.update(_copies(f"{path}.grad", leaf.grad, strict))
            elif type(leaf).__module__ == "numpy" and not leaf.dtype.hasobject:
                copies[path] = (str(leaf.dtype), leaf.shape, leaf.tobytes())
            elif isinstance(leaf, (float, complex)):
                number = complex(leaf)
                copies[path] = (type(leaf).__name__, struct.pack("dd", number.real, number.imag))
            elif isinstance(leaf, _TEXTS):
                copies[path] = leaf
            elif strict:
                raise TypeError(
                    f"cannot compare {path} bit for bit: it is a {type(leaf).__name__}; use "
                    "tensors, arrays, numbers, strings, or lists, tuples, dicts or dataclasses of "
                    "them"
                )
    return copies


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a container, each with its path."""
    if isinstance(value, torch.nn.Module):
        named = (*value.named_parameters(), *value.named_buffers())
        yield from ((f"{path}.{name}", tensor) for name, tensor in named)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        names = getattr(value, "_fields", None)
        for number, item in enumerate(value):
            yield from _walk(item, f"{path}.{names[number]}" if names else f"{path}[{number}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _walk(getattr(value, field.name), f"{path}.{field.name}")
    else:
        yield path, value


def _copies(path: str, tensor: Tensor, strict: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield a CPU copy of a tensor, or of each component of a sparse tensor."""
    if tensor.is_meta or tensor.is_nested or tensor.is_mkldnn:
        if strict:
            raise TypeError(
                f"cannot compare {path} bit for bit: {dtype_and_shape(tensor)} has no plain data"
            )
        return
    for name, piece in parts(tensor).items():
        yield f"{path}.{name}" if name else path, in_memory(piece).to("cpu", copy=True)


def differences(first: Values, second: Values) -> list[str]:
    """Return a line for each of the first few values that are not bitwise identical."""
    lines = [
        f"{path}: only in one of the runs"
        for path in (*first, *second)
        if (path in first) != (path in second)
    ]
    with without_modes():
        for path, one in first.items():
            if path in second:
                text = _difference(one, second[path])
                if text is not None:
                    lines.append(f"{path}: {text}")
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"and {len(lines) - _SHOWN} more"]
    return lines


def _difference(first: Any, second: Any) -> str | None:
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        same = type(first) is type(second) and first == second
        return None if same else f"{_shown(first)} and {_shown(second)}"
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return f"{dtype_and_shape(first)} and {dtype_and_shape(second)}"
    differing = unequal(first, second)
    if differing is None:
        return None
    count = int(differing.sum())
    text = f"{count} of {first.numel()} elements differ ({dtype_and_shape(first)})"
    distances = gaps(first, second, differing)
    if distances is not None:
        finite = distances[distances.isfinite()]
        if len(finite):
            text += f", the largest difference is {float(finite.max()):.6g}"
        if len(finite) < count:
            text += f", {count - len(finite)} of them are NaN or Inf"
    where = torch.unravel_index(differing.nonzero()[0, 0], first.shape)
    return text + (f", first at {[int(i) for i in where]}" if first.dim() else "")


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return dtype_and_shape(value)
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], bytes):
        real, imaginary = struct.unpack("dd", value[1])
        return repr(complex(real, imaginary) if value[0] == "complex" else real)
    if isinstance(value, tuple):
        return f"array of {value[0]}{list(value[1])}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def captured(function: Callable[..., object]) -> dict[str, Any]:
    """Return the objects that a Python function uses and that live longer than its calls."""
    function = inspect.unwrap(function)
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        return {}
    try:
        names = inspect.getclosurevars(function)
    except ValueError:  # a cell without a value yet
        return {}
    objects = {**names.globals, **names.nonlocals}
    return {f"captured {name}": value for name, value in objects.items()}


def first_divergence(
    run: Repeat, numbers: Sequence[int], shared: Callable[[], Mapping[str, Any]]
) -> str:
    """Record the runs again and describe where they diverge.

    Args:
        run: makes the run of a given number from the same state, inside the block it gets.
        numbers: the runs to record; each is compared with the first until one differs.
        shared: returns objects with which a run begins and that it may share with others, by name.
    """
    unwritten = None
    begun: list[Values] = []

    @contextmanager
    def noted(recorded: AbstractContextManager[object]) -> Iterator[None]:
        begun.append(_begun_with(shared()))
        with recorded:
            yield

    with temporary_folder() as folder:
        paths = [folder / str(position) for position in range(len(numbers))]
        for position, number in enumerate(numbers):
            recorded = record(paths[position])
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", UNSAID)  # said below
                    run(number, noted(recorded))
            except Exception as error:
                return f"recording the run again raised {type(error).__name__}: {error}"
            if recorded.unwritten_reads:
                unwritten = next(iter(recorded.unwritten_reads))
            if differing := differences(begun[0], begun[-1]):
                return "\n  ".join([_BEGUN, *differing])
            if position:
                comparison, _ = diff_traces(paths[0], paths[position])
                if not comparison.identical:
                    return _named(comparison)
    if unwritten is not None:
        return f"{unwritten} reads uninitialized memory: write to what empty() returns before it"
    return (
        "Recorded again, all runs made the same calls with the same bytes: either the difference "
        "is rare, or it comes from outside PyTorch's dispatch (another library, NumPy)"
    )


def _begun_with(shared: Mapping[str, Any]) -> Values:
    begun: Values = {}
    for name, value in shared.items():
        with suppress(Exception):  # any object of the program, such as a list that contains itself
            begun |= snapshot(value, name, strict=False, grads=True)
    return begun


def _named(comparison: Comparison) -> str:
    divergence = comparison.divergence
    assert divergence is not None
    text = f"the runs diverge at {divergence.call.overload} at {divergence.call.site}"
    if divergence.kind == "inputs":
        text += (
            "\nno call before it gave other bits: this input was made before the run, changed "
            "outside of PyTorch's dispatch, or is uninitialized memory"
        )
    # The recordings are deleted, so advice to record them again would not help.
    return f"{text}\n{dataclasses.replace(comparison, to_dump=((), ()))}"
