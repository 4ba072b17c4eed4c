"""A call that a plan repeats has its launcher's bits, on the current stream."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch

from detmode import DeterministicMode
from detmode.bits.difference import same_bits
from detmode.cuda import native
from detmode.mode import base_mode, plans
from detmode.mode.row_counter import RowCounter
from detmode.verify.cases import Case, call
from tests.shared.gpu_calls import CHOSEN, DEVICES, tensors_in

CALLS = 4
"""The third one is the first that a plan may make; the last one has other data."""


@contextmanager
def counted() -> Iterator[list[bool]]:
    """The calls that plans may make: whether each was."""
    played: list[bool] = []
    count_known = RowCounter.count_known

    def count(*args: Any) -> bool:
        played.append(count_known(*args))
        return played[-1]

    with patch.object(RowCounter, "count_known", count):
        yield played


def last_of(case: Case, device: str) -> list[torch.Tensor]:
    """The tensors of the last of several calls at one line, inputs that it writes to among them."""
    with DeterministicMode(simulate="cuda" if device == "cpu" else None):
        for seed in (*range(CALLS - 1), 7):
            arguments = case.sample.arguments(case.dtype, device, seed)
            result = call(case.sample, arguments)
    return [*tensors_in(result), *tensors_in(arguments)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_a_plan_has_the_launchers_bits(case: Case, device: str) -> None:
    """On the default stream and, on a GPU, on another one, which nothing else waits for."""
    plans.forget()
    with patch.object(base_mode, "plans_of", lambda *_: None):
        expected = last_of(case, device)
    refused = plans.refusals()
    # The player in C++ counts all that it makes together, so Python's makes the calls at first.
    with patch.dict(os.environ, {native.VARIABLE: "0"}), counted() as played:
        results = [last_of(case, device)]
    assert any(played) or plans.refusals() != refused
    if device == "cuda":
        with torch.cuda.stream(torch.cuda.Stream()):
            results.append(last_of(case, device))
        torch.cuda.synchronize()
    results.append(last_of(case, device))
    for result in results:
        assert all(map(same_bits, result, expected))
