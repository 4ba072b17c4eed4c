"""Sums and assignments by index: what only these operators have, and the user's own calls."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from detmode import DeterministicMode
from detmode.rules.index import launch
from detmode.rules.index_reduce.launch import index_reduce
from tests.shared import needs
from tests.shared.strategies import in_schedules

pytestmark = needs.compiler


def test_alphas_that_are_equal_are_told_apart() -> None:
    """-0.0 equals 0.0, yet a sum by one of them has the other sign; both have one plan's shapes."""
    self, index, rows = torch.full((2,), -0.0), torch.tensor([0]), torch.ones(1)
    for alpha, negative in ((0.0, False), (-0.0, True), (0.0, False)):
        result = launch.index_add(self, 0, index, rows, alpha=alpha)
        assert torch.signbit(result).tolist() == [negative, True]


def test_subscripts() -> None:
    """``x[index] = values`` and ``index_copy_`` are substituted, except on views with gaps."""
    index, mode = torch.tensor([1, 0, 1]), DeterministicMode(simulate="cuda")
    x = torch.zeros(2, 4)
    with mode:
        x[index] = torch.arange(12.0).view(3, 4)
        x[:, index] = torch.arange(6.0).view(2, 3)
        x.index_copy_(1, index, 10 * torch.arange(6.0).view(2, 3))
        x[x > 15] = 7.0
    assert [record.action for record in mode.records] == ["substitute", "substitute", "substitute"]
    assert x.tolist() == [[10.0, 7.0, 6.0, 7.0], [7.0, 7.0, 10.0, 11.0]]
    native = DeterministicMode(simulate="cuda")
    with native:
        x[:, :3].index_copy_(0, index, torch.ones(3, 3))
        x.t()[index] = torch.arange(6.0).view(3, 2)
    assert {record.action for record in native.records} == {"native"}


def test_a_mask_beside_an_index_names_a_place_twice() -> None:
    """The last value wins, as without a mask, in any schedule."""
    indices = [torch.tensor([False, True]), torch.ones(64, dtype=torch.int64)]
    for seed in range(8):
        result = in_schedules(
            lambda: launch.index_put(torch.zeros(2, 3), indices, torch.arange(64.0)), seed
        )
        assert result.tolist() == [[0, 0, 0], [0, 63, 0]]


@pytest.mark.parametrize("function", [launch.index_add, partial(index_reduce, reduce="prod")])
def test_vector_is_no_source_for_a_scalar(function: Callable[..., Tensor]) -> None:
    """As in ATen; a scalar is one."""
    index = torch.tensor([0])
    with pytest.raises(RuntimeError, match="source tensor shape must match self"):
        function(torch.ones(()), 0, index, torch.ones(1))
    assert function(torch.ones(()), 0, index, torch.ones(())).shape == ()
