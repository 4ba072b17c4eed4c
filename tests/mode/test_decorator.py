"""The mode as a decorator of what is no plain function."""

import pytest
import torch

from detmode import DeterministicMode


def test_generator_runs_inside_and_waits_outside():
    """Between two values the caller has its own settings back."""

    @DeterministicMode()
    def seen():
        for _ in range(2):
            yield torch.are_deterministic_algorithms_enabled()

    inside, outside = [], []
    for flag in seen():
        inside.append(flag)
        outside.append(torch.are_deterministic_algorithms_enabled())
    assert inside == [True, True]
    assert outside == [False, False]


def test_coroutine_function_is_refused():
    """Across an ``await`` other tasks would run inside the block."""

    async def waits():
        pass

    with pytest.raises(TypeError, match="coroutine"):
        DeterministicMode()(waits)
