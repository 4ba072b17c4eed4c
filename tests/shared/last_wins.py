"""Assignments with repeated destinations: a serial loop in which the last one stays."""

from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.samples import Maker
from detmode.verify.cases import last_stays
from tests.shared.strategies import ANY_LAYOUT, SEEDS, same_bits

EVERY = (*FLOATING, *COMPLEX, *INTEGRAL, torch.bool)
# Raw words of every width; the others differ from these in nothing that a move of bits can see.
DTYPES = st.sampled_from(
    [torch.bool, torch.bfloat16, torch.float32, torch.int64, torch.complex64, torch.complex128]
)


def filled(dtype: torch.dtype, shape: Sequence[int], seed: int) -> Tensor:
    """Bytes at random: every bit counts, those of NaNs too."""
    if dtype is torch.bool:
        return Maker(dtype, seed=seed).normal(*shape)
    data = Maker(dtype, seed=seed).integers(0, 256, *shape, dtype.itemsize, dtype=torch.uint8)
    return data.view(dtype).view(list(shape))


@st.composite
def words(draw: st.DrawFn, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Such bytes in some layout."""
    return draw(ANY_LAYOUT)(filled(dtype, shape, draw(SEEDS)))


def assert_last_wins(
    got: Tensor, self: Tensor, destinations: Tensor, source: Tensor, case: str = ""
) -> None:
    """``got`` is ``self`` with ``source`` written in row-major order.

    Args:
        got: the result.
        self: the values there before.
        destinations: row-major positions in ``self``, of the shape of ``source``.
        source: the values written.
        case: for the message.
    """
    expected = last_stays(self, destinations, source)
    assert got.dtype == self.dtype
    assert got.shape == self.shape
    assert same_bits(got, expected), case
