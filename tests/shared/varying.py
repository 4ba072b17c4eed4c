"""Operators that vary, draw or warn, which no table knows."""

import random
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from detmode import DeterministicMode

FAULTY = 1_000
"""One result in so many has a flipped bit."""
STATE: dict[str, Any] = {"calls": 0, "random": random.Random(0), "one_in": FAULTY}


@torch.library.custom_op("detmode_varying::faulty", mutates_args=())
def faulty(x: Tensor) -> Tensor:
    """One result in so many has another bit."""
    result = x.clone()
    STATE["calls"] += 1
    if STATE["random"].random() * STATE["one_in"] < 1:
        result.view(torch.int32)[0] ^= 1
    return result


@torch.library.custom_op("detmode_varying::count", mutates_args=())
def count(x: Tensor) -> Tensor:
    """Keeps a state of its own, and so differs at each call."""
    STATE["calls"] += 1
    return x + STATE["calls"]


@torch.library.custom_op("detmode_varying::draw", mutates_args=())
def draw(x: Tensor) -> Tensor:
    """Random by three generators, and its tags say nothing of it."""
    return x + torch.rand(()) + random.random() + np.random.rand()


draw.register_autograd(lambda ctx, grad: grad)


@torch.library.custom_op("detmode_varying::add_", mutates_args=("x",))
def add_(x: Tensor, y: Tensor) -> None:
    x.add_(y)


@torch.library.custom_op("detmode_varying::shape", mutates_args=())
def shape(x: Tensor) -> Tensor:
    """Returns as many zeros as calls were made."""
    STATE["calls"] += 1
    return x.new_zeros(STATE["calls"])


@torch.library.custom_op("detmode_varying::warn", mutates_args=())
def warn(x: Tensor) -> Tensor:
    """Warns at each call."""
    STATE["calls"] += 1
    warnings.warn("as it is called", stacklevel=1)
    return x.clone()


@torch.library.custom_op("detmode_varying::draw_more", mutates_args=())
def draw_more(x: Tensor) -> Tensor:
    """Draws one number more at each call, and returns none of them."""
    STATE["calls"] += 1
    torch.rand(STATE["calls"])
    return x.clone()


def counts(mode: DeterministicMode) -> dict[str, float]:
    return dict(mode.report().head["recheck"])
