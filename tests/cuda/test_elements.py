"""The elements of tensors whose memory holds other numbers."""

import ctypes

import pytest
import torch

from detmode.cuda.elements import in_memory, plain

NUMBERS = torch.tensor([[1 + 2j, -3j], [0.5, -4 + 1j]])


@pytest.mark.parametrize("read", [in_memory, plain])
@pytest.mark.parametrize("lazy", [torch.conj, torch._neg_view, torch.t])
def test_memory_holds_the_elements(read, lazy):
    """Conjugation, negation and transposition are done where they were only said."""
    view = lazy(NUMBERS)
    found = read(view)
    wanted = torch.tensor(view.tolist())
    size = NUMBERS.nbytes
    assert ctypes.string_at(found.data_ptr(), size) == ctypes.string_at(wanted.data_ptr(), size)
