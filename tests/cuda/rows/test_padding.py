"""Padding's backward on the host runner, over shapes, paddings, dtypes and layouts."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from detmode.cuda.rows.padding import gather_backward
from detmode.rules.reflection_pad import launch as reflection_pad
from detmode.rules.replication_pad import launch as replication_pad
from tests.shared import needs
from tests.shared.exact_sums import DTYPES, assert_exact
from tests.shared.selection import todays_dtypes
from tests.shared.strategies import SEEDS, SHARES, in_schedules, tensors

pytestmark = needs.compiler

LAUNCHERS: dict[tuple[str, int], Any] = {
    (family, n): getattr(module, f"{family}_pad{n}d_backward")
    for family, module, sizes in (
        ("reflection", reflection_pad, (1, 3)),
        ("replication", replication_pad, (1, 2, 3)),
    )
    for n in sizes
}
KINDS = sorted(LAUNCHERS)

sizes = st.one_of(st.integers(1, 8), st.sampled_from([1, 2, 33]))
leading = st.lists(st.integers(1, 5), min_size=1, max_size=2)
widths = st.one_of(st.integers(-4, 6), st.integers(0, 2), st.sampled_from([0, 40, 130]))


def padded(shape: Sequence[int], padding: Sequence[int]) -> list[int]:
    """The shape after padding."""
    result = list(shape)
    for axis in range(len(padding) // 2):
        result[-1 - axis] += padding[2 * axis] + padding[2 * axis + 1]
    return result


def sources(kind: str, shape: Sequence[int], padding: Sequence[int]) -> Tensor:
    """For each output the position in the input that it copies, from ATen's forward on the CPU."""
    spatial = len(padding) // 2
    positions = torch.arange(math.prod(shape), dtype=torch.float64).reshape(*shape)
    forward = getattr(torch.ops.aten, f"{kind}_pad{spatial}d")
    return forward(positions, list(padding)).long()


@given(data=st.data(), kind=st.sampled_from(KINDS), dtype=DTYPES)
def test_pad_backward(data: st.DataObject, kind: tuple[str, int], dtype: torch.dtype) -> None:
    """The exact sum of what was copied, rounded once; the bits of any schedule; contiguous."""
    family, spatial = kind
    axes = data.draw(st.lists(sizes, min_size=spatial, max_size=spatial))
    padding = [data.draw(widths) for _ in range(2 * spatial)]
    if family == "reflection":
        limits = [axes[-1 - i // 2] - 1 for i in range(2 * spatial)]
        padding = [min(pad, limit) for pad, limit in zip(padding, limits, strict=True)]
    shape = data.draw(leading) + axes
    out = padded(shape, padding)
    assume(min(out) > 0 and math.prod(out) < 20_000 and math.prod(shape) < 20_000)
    grad_output = data.draw(tensors(out, dtype))
    self = torch.zeros(shape, dtype=dtype)
    arguments = f"{family}_pad{spatial}d_backward", spatial, grad_output, self, padding
    share = data.draw(SHARES)
    got = in_schedules(lambda: gather_backward(*arguments, share), data.draw(SEEDS))
    assert got.is_contiguous()
    # Sums start from +0.0: the zeros of `self` are addends.
    copied = sources(family, shape, padding)
    assert_exact(got, self, copied, grad_output)
    backward = getattr(torch.ops.aten, f"{family}_pad{spatial}d_backward")
    wide = torch.complex128 if dtype.is_complex else torch.float64
    aten = backward(grad_output.to(wide), self.to(wide), padding)
    # ATen in float64 takes a rounding for each copy.
    copies = int(copied.flatten().bincount().max())
    eps = torch.finfo(dtype).eps + copies * torch.finfo(torch.float64).eps
    finite = aten.abs() < torch.finfo(dtype).max / 4
    magnitude = backward(grad_output.abs().to(wide), self.to(wide), padding).abs()
    error, scale = (got.to(wide) - aten).abs()[finite], magnitude[finite]
    assert (error <= eps * scale + torch.finfo(dtype).smallest_normal).all()


@pytest.mark.parametrize("padding", [(-1, 0), (0, -2), (-2, -1), (3, -2), (-3, 4), (4, 4)], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_padding_that_crops(kind: tuple[str, int], padding: tuple[int, int]) -> None:
    """Before, behind or both, beside one that pads: elements that are cropped get nothing."""
    family, spatial = kind
    shape, sides = (2, *(5, 6, 7)[:spatial]), list(padding) + [0, 1] * (spatial - 1)
    grad_output = torch.arange(1.0, math.prod(padded(shape, sides)) + 1).view(padded(shape, sides))
    self = torch.zeros(shape)
    got = in_schedules(lambda: LAUNCHERS[kind](grad_output, self, sides), 1)
    assert_exact(got, self, sources(family, shape, sides), grad_output)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_gradients_that_do_not_fit(kind: tuple[str, int]) -> None:
    """An access beyond the tensors is an error."""
    family, spatial = kind
    function = LAUNCHERS[kind]
    shape, padding = (2, 3, *(5,) * spatial), [1, 2] * spatial
    grad_output, self = torch.ones(padded(shape, padding)), torch.ones(shape)
    for wrong in (grad_output[:1], grad_output[:, :2], grad_output[..., 1:], grad_output[0]):
        with pytest.raises(RuntimeError, match="Expected grad_output to have the shape"):
            function(wrong, self, padding)
    with pytest.raises(RuntimeError, match=f"padding size is expected to be {2 * spatial}"):
        function(grad_output, self, padding[:-1])
    with pytest.raises(RuntimeError, match="dimensions, but got 1"):
        function(grad_output, self[(0,) * (spatial + 1)], padding)
    if family == "reflection":
        wide = [5, 0] * spatial
        with pytest.raises(RuntimeError, match="should be less than the corresponding input"):
            function(torch.ones(padded(shape, wide)), self, wide)


@pytest.mark.parametrize("dtype", todays_dtypes([torch.float16, torch.float32, torch.complex64]))
def test_replication_of_one_element(dtype: torch.dtype) -> None:
    """A warp adds a long run as accurately as one thread a short one."""
    shape, padding = (2, 1, 1), [2500, 1700]
    grad_output = torch.full((2, 1, 4201), 0.1, dtype=dtype)
    grad_output[:, :, ::2] *= -1
    grad_output[:, :, 7] = 1024
    self = torch.zeros(shape, dtype=dtype)
    got = in_schedules(
        lambda: replication_pad.replication_pad1d_backward(grad_output, self, padding), 1
    )
    assert_exact(got, self, sources("replication", shape, padding), grad_output)


def test_reflection_of_no_volumes_is_not_asked_for_its_padding() -> None:
    """As in ATen, which refuses the same padding of a volume that has elements."""
    self, grad_output, padding = torch.ones(0, 2, 2, 2), torch.ones(0, 6, 6, 6), [2] * 6
    function = reflection_pad.reflection_pad3d_backward
    assert function(grad_output, self, padding).shape == self.shape
    with pytest.raises(RuntimeError, match="Padding size should be less"):
        function(torch.ones(1, 6, 6, 6), torch.ones(1, 2, 2, 2), padding)
