"""Operators by the names that users write: ``torch.gather``, ``nn.AvgPool3d``, ``F.interpolate``.

``called_as.txt`` has a line for each of PyTorch's functions and modules whose calls meet a listed
operator: the name, the operators that a mode sees in forward, and the listed ones that it meets in
forward and backward. ``tools/write_expected.py called`` writes it, by running the samples that
PyTorch has for its own tests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import isclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

LINES = Path(__file__).with_suffix(".txt")
NONE = "-"
"""In the lines, in place of no operator."""
_PREFIXES = (
    *("torch.nn.functional.", "nn.functional.", "functional.", "F.", "aten::"),
    *("torch.nn.modules.", "torch.nn.", "nn.", "torch.Tensor.", "Tensor.", "torch."),
)


class _Called(NamedTuple):
    """The operators that a function or a module calls.

    Args:
        forward: the operators that a mode sees in forward, such as ``aten::gather``.
        listed: those with a rule that it meets, in backward too, such as ``aten::scatter_add``.
    """

    forward: tuple[str, ...]
    listed: tuple[str, ...]


@cache
def _by_name() -> dict[str, _Called]:
    lines = (line.split() for line in LINES.read_text(encoding="utf-8").splitlines()[1:])
    return {
        name: _Called(*(() if ops == NONE else tuple(ops.split(",")) for ops in (forward, listed)))
        for name, forward, listed in lines
    }


def called_as(name: str) -> _Called | None:
    """Return what a function calls that a user names; ``None`` if none is known by this name.

    >>> called_as("torch.gather").listed
    ('aten::scatter_add',)

    Args:
        name: with or without PyTorch's module, such as ``"F.interpolate"``, ``"Tensor.put_"``; or
            an operator's, such as ``"aten::gather"``.
    """
    bare, known = without_module(name), _by_name()
    return (
        known.get(bare) or known.get(bare.removesuffix("_")) or _by_forward().get(f"aten::{bare}")
    )


@cache
def _by_forward() -> dict[str, _Called]:
    """Return functions whose forward is one operator, by this operator: ``aten::_ctc_loss``."""
    calls = _by_name().values()
    return {called.forward[0]: called for called in calls if len(called.forward) == 1}


def without_module(name: str) -> str:
    """Return a function's name without PyTorch's module: ``"interpolate"``."""
    return name.removeprefix(next(filter(name.startswith, _PREFIXES), ""))


def names_of_users() -> tuple[str, ...]:
    """Return all names that :func:`called_as` knows, without PyTorch's modules."""
    return tuple(_by_name())


def functions_of(op: str) -> tuple[str, ...]:
    """Return the names, without PyTorch's modules, of what calls an operator."""
    called_by = _by_name().items()
    return tuple(name for name, called in called_by if op in called.forward + called.listed)


def public_name(name: str) -> str:
    """Return a function's or a module's name with PyTorch's, as its documentation has it.

    >>> public_name("AvgPool3d"), public_name("no_such")
    ('nn.AvgPool3d', '')
    """
    places = {"F": torch.nn.functional, "torch": torch, "Tensor": torch.Tensor, "nn": torch.nn}
    known = (prefix for prefix, place in places.items() if callable(getattr(place, name, None)))
    prefix = "" if name.startswith("_") else next(known, "")
    return prefix and f"{prefix}.{name}"


def name_of(function: Callable[..., Any]) -> str | None:
    """Return the name of one of PyTorch's functions or modules; ``None`` for anything else.

    >>> name_of(torch.histc)
    'torch.histc'
    """
    if isclass(function):
        is_module = issubclass(function, torch.nn.Module)
        return f"torch.nn.{function.__name__}" if is_module else None
    name: str | None = torch.overrides.resolve_name(function) if callable(function) else None
    return name
