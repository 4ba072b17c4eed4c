"""Assignments by several families: of what comes to a place the last stays, bit by bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode import DeterministicMode
from detmode.rules.index.launch import index_put
from detmode.rules.index_copy.launch import index_copy
from detmode.rules.put.launch import put
from detmode.rules.scatter_assign.launch import scatter
from detmode.table.inputs import back_to_front, shifted
from detmode.table.samples import Maker
from tests.shared import destinations, last_wins, needs
from tests.shared.strategies import SEEDS, in_place_and_not, in_schedules, same_bits

pytestmark = needs.compiler


def copied(self: Tensor, dim: int, index: Tensor, source: Tensor, **out: Tensor) -> Tensor:
    """``index_copy``, which takes no other integers."""
    return index_copy(self, dim, index.long(), source, **out)


ASSIGNMENTS: dict[str, tuple[Any, Any, Any]] = {
    # One element into the storage, rows are aligned to nothing but their elements.
    "index_copy": (copied, destinations.rows, shifted),
    "index_put": (index_put, destinations.indexed, Tensor.contiguous),
    "put": (put, destinations.placed, back_to_front),
    "scatter_assign": (scatter, destinations.scattered, Tensor.contiguous),
}
"""Functions that assign, with what they take, and another layout in which they take it."""


@pytest.mark.parametrize("family", ASSIGNMENTS)
@given(data=st.data(), dtype=last_wins.DTYPES, seed=SEEDS)
def test_the_last_stays(family: str, data: st.DataObject, dtype: torch.dtype, seed: int) -> None:
    """Of each place, in any schedule, in place and not."""
    function, calls, layout = ASSIGNMENTS[family]
    call = data.draw(calls(last_wins.words, dtype))
    self = data.draw(st.sampled_from([Tensor.contiguous, layout]))(call.arguments[0])
    got = in_place_and_not(function, self, *call.arguments[1:], seed=seed)
    assert _steps(got) == _steps(self) or not got.numel()
    last_wins.assert_last_wins(got, self, call.to, call.values)


def _steps(tensor: Tensor) -> list[int]:
    """The strides that lead from one element to another."""
    return [step for size, step in zip(tensor.shape, tensor.stride()) if size > 1]


@pytest.mark.parametrize("set_places", [1, 2])
@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 33)], ids=str)
def test_a_mask_beside_a_repeated_index(shape: tuple[int, ...], set_places: int) -> None:
    """A mask names no place twice, but an index beside it does, also if one place is set."""
    mask = torch.arange(shape[0]) < set_places
    index = torch.tensor([3] * 40 if set_places == 1 else [3, 3])
    values = Maker(torch.float32, seed=0).normal(index.numel(), *shape[2:])
    expected = torch.zeros(shape)
    for place, value in zip(mask.nonzero().flatten().expand(index.numel()), values):
        expected[place, 3] = value
    for seed in range(8):
        found = in_schedules(lambda: index_put(torch.zeros(shape), [mask, index], values), seed)
        assert same_bits(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128], ids=str)
def test_one_element_that_has_a_stride(dtype: torch.dtype) -> None:
    """A program's view of one element is contiguous, whatever its stride; it holds the election."""
    index, values = torch.zeros(70, dtype=torch.int64), torch.arange(70).to(dtype)
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "put_": lambda x: x.put_(index, values),
        "index_copy_": lambda x: x.index_copy_(0, index, values),
        "index_put_": lambda x: x.index_put_((index,), values),
        "scatter_": lambda x: x.scatter_(0, index, values),
    }
    with DeterministicMode(simulate="cuda"):
        for name, call in calls.items():
            memory = torch.zeros(4, dtype=dtype)
            call(memory[1::3][:1])
            assert memory.real.tolist() == [0, 69, 0, 0], name
