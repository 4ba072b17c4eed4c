"""Steps of plans that the player in C++ leaves to Python: launches and checks on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from detmode.cuda.plan import Check, Empty, Launch, Plan
from detmode.cuda.python_player import player

_get_address = torch.Tensor.data_ptr


def function_of(step: Launch | Check, plan: Plan) -> Callable[..., Any]:
    """Return the function by which the player has a step of a plan made."""
    slots = (*plan.inputs, *(empty.form for empty in plan.steps if isinstance(empty, Empty)))
    return player(Plan(slots, plan.device, (step,), (), is_tuple=True))


def make(function: Callable[..., Any], slots: Sequence[torch.Tensor]) -> None:
    """Make the step of a function, with the tensors of the slots."""
    function(*slots, *map(_get_address, slots))
