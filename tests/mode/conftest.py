"""A claim of every test here: afterwards all settings are as they were."""

import random

import pytest
import torch

from tests.mode.planned import Played
from tests.shared.varying import FAULTY, STATE


@pytest.fixture(autouse=True)
def _nothing_left_behind(nothing_left_behind: None) -> None:
    pass


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    """Counts the calls that plans have made."""
    return Played(monkeypatch)


@pytest.fixture
def fresh_operators(cublas_workspace: None) -> None:
    """Operators that vary, draw or warn begin anew."""
    STATE.update(calls=0, random=random.Random(0), one_in=FAULTY)
    torch.manual_seed(0)
