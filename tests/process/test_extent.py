"""The bytes of its storage from a tensor's first element to its last."""

import doctest
import itertools

import pytest
import torch

from detmode.process import extent
from detmode.process.extent import extent_of

VIEWS = {
    "whole": lambda memory: memory,
    "from an offset": lambda memory: memory[7:],
    "with gaps": lambda memory: memory[3:50:4],
    "transposed": lambda memory: memory.view(10, 12).t()[2:, 1:],
    "columns": lambda memory: memory.view(10, 12)[1:, 2:5],
    "channels last": lambda memory: memory.view(2, 3, 4, 5).permute(0, 3, 1, 2)[1:],
    "expanded": lambda memory: memory[5:6].expand(9, 1),
    "expanded, with gaps": lambda memory: memory[5:30:6, None].expand(-1, 4),
    "interleaved": lambda memory: memory.as_strided((3, 4), (2, 3), 1),
    "one number": lambda memory: memory[9],
    "a dimension of one": lambda memory: memory.as_strided((1, 2), (99, 1)),
}


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_begins_and_ends_where_elements_do(view: str, dtype: torch.dtype) -> None:
    """Of the bytes that writing all elements changes, the extent has the first and the last."""
    memory = torch.zeros(120, dtype=dtype)
    tensor = VIEWS[view](memory)
    for place in itertools.product(*map(range, tensor.shape)):
        tensor[place] = -1
    changed = memory.view(torch.uint8).nonzero().flatten().tolist()
    assert extent_of(tensor) == (changed[0], changed[-1] + 1)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)], ids=str)
def test_without_elements(shape: tuple[int, ...]) -> None:
    """A tensor without elements has no bytes, whatever its other sizes and strides say."""
    tensor = torch.zeros(60, dtype=torch.int16).as_strided(shape, (7,) * len(shape), 5)
    assert extent_of(tensor) == (10, 10)


def test_example() -> None:
    """The example of the docstring is true."""
    names = {"torch": torch, "extent_of": extent_of}
    assert doctest.testmod(extent, extraglobs=names).failed == 0
