"""Steps of plans that the player in C++ leaves to Python: launches and checks on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from detmode.cuda.plan import Check, Empty, Launch, Plan
from detmode.cuda.python_player import player
from detmode.process.bounded import Bounded

__all__ = ["MOST", "make", "number_for"]

MOST = 1 << 15
"""The most steps of plans that are in use."""
_steps: Bounded[int, Callable[..., Any]] = Bounded(4 * MOST)
_numbers = itertools.count(1)
_get_address = torch.Tensor.data_ptr


def number_for(step: Launch | Check, plan: Plan) -> int:
    """Return a number by which the player asks for a step of a plan; it is given once."""
    slots = (*plan.inputs, *(empty.form for empty in plan.steps if isinstance(empty, Empty)))
    number = next(_numbers)
    _steps.keep(number, player(Plan(slots, plan.device, (step,), (), is_tuple=True)))
    return number


def make(number: int, slots: Sequence[torch.Tensor]) -> None:
    """Make the step of a number, with the tensors of the slots."""
    _steps[number](*slots, *map(_get_address, slots))
