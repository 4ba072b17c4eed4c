"""Trainings seed: the generators and the threads are put back."""

from collections.abc import Iterator

import pytest
import torch

import detmode


@pytest.fixture(autouse=True)
def _generators_are_put_back() -> Iterator[None]:
    state, threads = detmode.rng_state(), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    detmode.set_rng_state(state)
