"""Operators that vary, draw or warn, for the tests of calls that are made twice."""

import random
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from detmode import DeterministicMode

FAULTY = 1_000
"""One result in so many has a flipped bit."""


@torch.library.custom_op("detmode_recheck::faulty", mutates_args=())
def faulty(x: Tensor) -> Tensor:
    """A nondeterministic operator that no table knows: one result in ``FAULTY`` has another bit."""
    result = x.clone()
    STATE["calls"] += 1
    if STATE["random"].random() * STATE["one_in"] < 1:
        result.view(torch.int32)[0] ^= 1
    return result


@torch.library.custom_op("detmode_recheck::count", mutates_args=())
def count(x: Tensor) -> Tensor:
    """Keeps a state of its own, and so differs at each call."""
    STATE["calls"] += 1
    return x + STATE["calls"]


@torch.library.custom_op("detmode_recheck::draw", mutates_args=())
def draw(x: Tensor) -> Tensor:
    """Random by three generators, and its tags say nothing of it."""
    return x + torch.rand(()) + random.random() + np.random.rand()


@torch.library.custom_op("detmode_recheck::add_", mutates_args=("x",))
def add_(x: Tensor, y: Tensor) -> None:
    x.add_(y)


@torch.library.custom_op("detmode_recheck::shape", mutates_args=())
def shape(x: Tensor) -> Tensor:
    """Returns as many zeros as calls were made."""
    STATE["calls"] += 1
    return x.new_zeros(STATE["calls"])


@torch.library.custom_op("detmode_recheck::warn", mutates_args=())
def warn(x: Tensor) -> Tensor:
    """Warns at each call."""
    STATE["calls"] += 1
    warnings.warn("as it is called", stacklevel=1)
    return x.clone()


@torch.library.custom_op("detmode_recheck::draw_more", mutates_args=())
def draw_more(x: Tensor) -> Tensor:
    """Draws one number more at each call, and returns none of them."""
    STATE["calls"] += 1
    torch.rand(STATE["calls"])
    return x.clone()


STATE: dict[str, Any] = {}


def counts(mode: DeterministicMode) -> dict[str, float]:
    return dict(mode.report().head["recheck"])
