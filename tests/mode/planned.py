"""Calls that plans make and that launchers make, for the tests of both."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from detmode import DeterministicMode, default_rules
from detmode.mode import base_mode
from detmode.mode.row_counter import RowCounter


@contextmanager
def by_launchers() -> Iterator[None]:
    """Modes that are made inside have no plans."""
    with patch.object(base_mode, "plans_of", lambda *_: None):
        yield


class Played:
    """Counts the calls that plans have made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        count_known = RowCounter.count_known

        def counted(*args: Any) -> bool:
            is_known = count_known(*args)
            self.count += is_known
            return is_known

        # Not the player: this function would be the user's code around it.
        monkeypatch.setattr(RowCounter, "count_known", counted)


def simulated(**options: Any) -> DeterministicMode:
    return DeterministicMode(simulate="cuda", **options)


def added(x: Tensor, index: Tensor, source: Tensor, **options: Any) -> Tensor:
    """A substituted call; all of these are made from one line."""
    return torch.index_add(x, 0, index, source, **options)


def launcher_of_index_add() -> Any:
    """The action of detmode's own first row."""
    return default_rules().get(torch.ops.aten.index_add.default)[0].rule.action


def example(seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Arguments of :func:`added`, with other bits for each seed."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(5, (7,), generator=generator)
    values = torch.randn(12, 3, generator=generator).to(dtype)
    return values[:5].clone(), index, values[5:].clone()


def expected(function: Callable[[], Any], **options: Any) -> Any:
    with by_launchers(), simulated(**options):
        return function()
