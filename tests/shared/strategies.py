"""Inputs that properties draw, and the claim they share: the same bits in two schedules."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from detmode.bits.difference import same_bits
from detmode.cuda import host
from detmode.cuda.rows.shapes import KEYS
from detmode.cuda.rows.shares import PER_THREAD, Share
from detmode.mode import plans
from detmode.table.conditions import FLOATING
from detmode.table.inputs import back_to_front, channels_last, shifted
from detmode.table.samples import Maker
from detmode.verify import claims
from detmode.verify.cases import tensors_of
from tests.shared.selection import todays_dtypes

SEEDS = st.integers(0, 2**32 - 1)
FLOATS = st.sampled_from(todays_dtypes(FLOATING))
SINGLE_OR_DOUBLE = st.sampled_from(todays_dtypes([torch.float32, torch.float64]))
SHARES = st.builds(Share, st.sampled_from([1, PER_THREAD]), st.sampled_from(KEYS))
SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-45)


def sliced(tensor: Tensor) -> Tensor:
    """The same values, in a part of every dimension of a larger tensor."""
    for dim in range(tensor.dim()):
        tensor = tensor.repeat_interleave(2, dim)
    return tensor[(slice(1, None, 2),) * tensor.dim()]


def expanded(tensor: Tensor) -> Tensor:
    """The same shape: the first element of each row, which repeats without memory of its own."""
    return tensor[..., :1].expand(tensor.shape) if tensor.dim() and tensor.numel() else tensor


# As they are, and with other strides; the last one has other values.
_LAYOUTS = (Tensor.contiguous, back_to_front, sliced, shifted, channels_last, expanded)
LAYOUTS = st.sampled_from(_LAYOUTS[:-1])
ANY_LAYOUT = st.sampled_from(_LAYOUTS)


@st.composite
def tensors(
    draw: st.DrawFn,
    shape: Sequence[int],
    dtype: torch.dtype,
    layouts: st.SearchStrategy[Callable[[Tensor], Tensor]] = ANY_LAYOUT,
) -> Tensor:
    """A tensor of wide range in some layout; one in three holds special values."""
    tensor = Maker(dtype, seed=draw(SEEDS)).normal(*shape)
    if tensor.numel() and draw(st.integers(0, 2)) == 0:
        parts = torch.view_as_real(tensor) if dtype.is_complex else tensor
        for value in draw(st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=4)):
            parts.view(-1)[draw(st.integers(0, parts.numel() - 1))] = value
        if draw(st.booleans()):
            parts.fill_(draw(st.sampled_from([-0.0, parts.view(-1)[0].item()])))
    return draw(layouts)(tensor)


# As often large as small, so that destinations collide.
SIZES = st.sampled_from([3, 2, 5, 9, 33, 1, 0])
COUNTS = st.sampled_from([9, 2, 40, 130, 300, 63, 64, 65, 1, 0])


@st.composite
def places(draw: st.DrawFn) -> tuple[list[int], int, list[int], int]:
    """A shape, a dimension of it, the shape of what goes there, and how many places are used."""
    shape = draw(st.lists(SIZES, max_size=3))
    dim = draw(st.integers(-len(shape), len(shape) - 1)) if shape else 0
    size = shape[dim] if shape else 1
    lengths = list(shape)
    if shape:
        lengths[dim] = draw(COUNTS) if size else 0
    return shape, dim, lengths, draw(st.sampled_from([1, min(2, size), size]))


@contextmanager
def planned_with(patched: AbstractContextManager[object]) -> Iterator[None]:
    """Patch what plans depend on: none is played inside that was recorded outside, or later."""
    plans.forget()
    with patched:
        yield
    plans.forget()


def in_schedules(run: Callable[[], Any], seed: int) -> Any:
    """The result in program order, which has the same bits in a shuffled schedule."""
    first = run()
    with host.schedule(seed):
        again = run()
    assert claims.same_bits(tensors_of(first), tensors_of(again))
    return first


def in_place_and_not(
    function: Callable[..., Tensor],
    self: Tensor,
    *arguments: Any,
    seed: int,
    layout: Callable[[Tensor], Tensor] = Tensor.contiguous,
    **more: Any,
) -> Tensor:
    """The result, the same in two schedules, and where ``out`` is ``self`` in some layout."""
    got = in_schedules(lambda: function(self, *arguments, **more), seed)
    target = layout(self.contiguous().clone())
    assert function(target, *arguments, **more, out=target) is target
    assert same_bits(target, got)
    return got
