"""A claim of every test here: afterwards all settings are as they were."""

import itertools
import random

import pytest
import torch
import torch._inductor.config as inductor

from tests.mode.planned import Played
from tests.shared.varying import FAULTY, STATE


@pytest.fixture(autouse=True)
def _nothing_left_behind(nothing_left_behind):
    pass


@pytest.fixture
def played(monkeypatch):
    """Counts the calls that plans have made."""
    return Played(monkeypatch)


@pytest.fixture
def fresh_operators(cublas_workspace):
    """Operators that vary, draw or warn begin anew."""
    STATE.update(calls=0, random=random.Random(0), one_in=FAULTY)
    torch.manual_seed(0)


@pytest.fixture
def listing(mode):
    """Makes modes over the small table that intercept listed operators alone."""
    return lambda **arguments: mode(**{"intercept": "listed", **arguments})


@pytest.fixture(
    params=list(itertools.product([(False, True), (True, True), (True, False)], [False, True]))
)
def start(request, monkeypatch):
    """A state of all settings before the block, undone afterwards."""
    (deterministic, warn_only), other = request.param
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", other)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", other)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not other)
    changes = {"deterministic": not other} if hasattr(inductor, "deterministic") else {}
    with inductor.patch(changes):
        yield
    torch.use_deterministic_algorithms(False)
