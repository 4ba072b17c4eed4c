"""Steps of plans that the player in C++ leaves to Python: launches and checks on the CPU."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from detmode.cuda import host
from detmode.cuda.allocation import on_cpu
from detmode.cuda.plan import CONSTANT, Check, Launch, View
from detmode.cuda.python_player import view_of
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

    def tensors(value: Any) -> Any:
        at = functools.partial(_tensor_at, slots)
        return tree_map_only(View, at, value, is_leaf=lambda part: isinstance(part, View))

    if isinstance(step, Check):
        step.function(*tensors(step.args), **tensors(step.kwargs))
        return
    bound = step.numbers, tensors(step.pointers)
    host.launch_blocks(step.source, step.entry, step.grid, step.block, bound, step.shared)


def _tensor_at(slots: Sequence[torch.Tensor], view: View) -> torch.Tensor:
    (slot, byte), form = view
    if slot == CONSTANT:
        return on_cpu(form.sizes, form.strides, form.dtype)
    return view_of(slots[slot], byte, form)
