"""Steps of plans that the player in C++ leaves to Python: launches and checks on the CPU."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch

from detmode.cuda import host
from detmode.cuda.plan import Check, Launch, View
from detmode.process.bounded import Bounded
from detmode.process.dispatch import own_calls

__all__ = ["MOST", "make", "number_for"]

MOST = 1 << 15
"""The most steps of plans that are in use."""
_steps: Bounded[int, Launch | Check] = Bounded(4 * MOST)
_numbers = itertools.count(1)


def number_for(step: Launch | Check) -> int:
    """Return a number by which the player asks for a step; no number is given twice."""
    number = next(_numbers)
    _steps.keep(number, step)
    return number


def make(number: int, slots: Sequence[torch.Tensor]) -> None:
    """Make the step of a number, with the tensors of the slots."""
    own_calls.run(_make_on_host, _steps[number], slots)


def _make_on_host(step: Launch | Check, slots: Sequence[torch.Tensor]) -> None:
    """Make a launch by the host runner, or a check of values."""
    tensors = functools.partial(_as_tensors, slots)
    if isinstance(step, Check):
        step.function(*tensors(step.args), **tensors(step.kwargs))
        return
    bound = step.numbers, tensors(step.pointers)
    host.launch_blocks(step.source, step.entry, step.grid, step.block, bound, step.shared)


def _as_tensors(slots: Sequence[torch.Tensor], value: Any) -> Any:
    """Return a value with tensors in the place of views of slots."""
    if isinstance(value, View):
        return _tensor_at(slots, value)
    if isinstance(value, dict):
        return {name: _as_tensors(slots, part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_as_tensors(slots, part) for part in value]
        if hasattr(value, "_fields"):
            return type(value)(*parts)
        return value if type(value) is torch.Size else type(value)(parts)
    return value


def _tensor_at(slots: Sequence[torch.Tensor], view: View) -> torch.Tensor:
    (slot, byte), (dtype, sizes, strides) = view
    if slot < 0:
        return torch.empty_strided(sizes, strides, dtype=dtype, device="cpu")
    whole = slots[slot]
    start = whole.storage_offset() * whole.itemsize + byte
    tensor = torch.empty(0, dtype=dtype, device="cpu")
    return tensor.set_(whole.untyped_storage(), start // dtype.itemsize, sizes, strides)
