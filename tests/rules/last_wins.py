"""What assignments with repeated destinations are: a serial loop in which the last one stays."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import torch
from exact_sums import same_bits
from hypothesis import strategies as st
from torch import Tensor

from detmode.cuda import host
from detmode.cuda.rows import assign
from detmode.table.conditions import COMPLEX, FLOATING, INTEGRAL
from detmode.table.samples import Maker
from detmode.verify.cases import last_stays

EVERY = (*FLOATING, *COMPLEX, *INTEGRAL, torch.bool)
# Raw words of every width; the others differ from these in nothing that a move of bits can see.
DTYPES = st.sampled_from(
    [torch.bool, torch.bfloat16, torch.float32, torch.int64, torch.complex64, torch.complex128]
)
# Whether owners are elected or rows are sorted; None leaves it to the shapes.
WAYS = st.sampled_from([None, True, False])
LAYOUTS = st.sampled_from(["contiguous", "transposed", "sliced", "expanded"])


def filled(dtype: torch.dtype, shape: tuple[int, ...] | list[int], seed: int) -> Tensor:
    """Bytes at random: every bit counts, those of NaNs too."""
    if dtype is torch.bool:
        return Maker(dtype, seed=seed).normal(*shape)
    size = torch.empty(0, dtype=dtype).itemsize
    data = Maker(dtype, seed=seed).integers(0, 256, *shape, size, dtype=torch.uint8)
    return data.view(dtype).view(shape)


def assert_last_wins(
    got: Tensor, self: Tensor, destinations: Tensor, source: Tensor, case: str = ""
) -> None:
    """``got`` is ``self`` with ``source`` written in row-major order.

    Args:
        got: the result.
        self: what was there before.
        destinations: row-major positions in ``self``, of the shape of ``source``.
        source: what was written.
        case: for the message.
    """
    expected = last_stays(self, destinations, source)
    assert got.dtype == self.dtype
    assert got.shape == self.shape
    assert same_bits(got, expected), case


def in_schedules(run: Callable[[], Tensor], elects: bool | None, seed: int) -> Tensor:
    """Runs in program order and in two shuffled schedules, which give the same bits."""
    choice = assign.elects if elects is None else lambda shape: elects
    with mock.patch.object(assign, "elects", choice):
        first = run()
        for other in (seed, seed + 1):
            with host.schedule(other):
                assert same_bits(run(), first)
    return first
