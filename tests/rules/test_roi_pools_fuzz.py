"""Pooling over regions on the host runner, over shapes, boxes, grids, layouts and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from exact_sums import SEEDS, assert_same_bits_in_any_schedule, laid_out
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode.cuda import unavailable
from detmode.rules.roi_pools import launch, reference
from detmode.rules.roi_pools.gather import DTYPES
from detmode.table.samples import Maker

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))

LAYOUTS = ("contiguous", "transposed", "sliced")
MOST = 48
"""No coordinate is larger, in pixels."""

sizes = st.one_of(st.integers(1, 9), st.sampled_from([1, 8, 9, 33, 40]))
counts = st.one_of(st.integers(0, 6), st.sampled_from([1, 40, 260]))


@st.composite
def bins(draw: st.DrawFn, dtype: torch.dtype) -> tuple[int, int, bool]:
    """Rows and columns of bins, and whether all positions are exact in any dtype.

    Where they are, in steps of 1/8 pixel, samples meet the border exactly; where they are not, a
    rounding must not decide on which side of it a sample is.
    """
    exact = dtype is torch.float16 or draw(st.booleans())
    size = st.sampled_from([1, 2, 4]) if exact else st.integers(1, 7)
    return draw(size), draw(size), exact


@st.composite
def boxes(
    draw: st.DrawFn, dtype: torch.dtype, images: int, height: int, width: int, exact: bool
) -> Tensor:
    """Boxes about the image: large, small, turned, and outside."""
    n, maker = draw(counts), Maker(torch.float64, seed=draw(SEEDS))
    most = min(max(height, width) + 4, MOST)
    first = maker.integers(-32, 8 * most, n, 2).double() / 8
    extent = maker.integers(-8, 8 * draw(st.sampled_from([1, 4, most])) + 1, n, 2).double() / 8
    corners = torch.cat([first, first + extent], 1)
    if not exact:
        corners += maker.normal(n, 4).sigmoid() / 8
    return torch.cat([maker.integers(0, images, n, 1), corners], 1).to(dtype)


@st.composite
def gradients(draw: st.DrawFn, dtype: torch.dtype, *shape: int) -> Tensor:
    tensor = Maker(dtype, seed=draw(SEEDS)).normal(*shape)
    return laid_out(tensor, draw(st.sampled_from(LAYOUTS)))


def assert_close(
    got: Tensor, run: Callable[..., Tensor], grad: Tensor, rois: Tensor, *arguments: Any
) -> None:
    """One rounding of the dtype, and those of the positions and weights."""
    exact = run(grad.double(), rois.double(), *arguments)
    magnitude = run(grad.double().abs(), rois.double(), *arguments)
    # What a rounded position takes from a pixel's weight it gives to a neighbour's.
    magnitude = torch.nn.functional.max_pool2d(magnitude, 3, 1, 1)
    opmath = torch.finfo(torch.float64 if got.dtype is torch.float64 else torch.float32)
    own = torch.finfo(got.dtype)
    bound = own.eps / 2 * exact.abs() + 6 * MOST * opmath.eps * magnitude + own.tiny * own.eps
    assert got.shape == exact.shape
    assert got.is_contiguous()
    wrong = (got.double() - exact).abs() > bound
    assert not wrong.any(), (got[wrong], exact[wrong], bound[wrong])


@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    position_sensitive=st.booleans(),
    shape=st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 17]), sizes, sizes),
    scale=st.sampled_from([1.0, 0.5]),
    ratio=st.integers(-1, 3),
    aligned=st.booleans(),
    seed=SEEDS,
)
def test_roi_align(
    data: st.DataObject,
    dtype: torch.dtype,
    position_sensitive: bool,
    shape: tuple[int, int, int, int],
    scale: float,
    ratio: int,
    aligned: bool,
    seed: int,
) -> None:
    """The gradient is the reference's in float64 but for roundings, in any schedule."""
    images, channels, height, width = shape
    *pooled, exact = data.draw(bins(dtype))
    rois = data.draw(boxes(dtype, images, height, width, exact))
    if position_sensitive:
        channels = min(channels, 2)
    grad = data.draw(gradients(dtype, len(rois), channels, *pooled))
    if not position_sensitive:
        how = (scale, *pooled, *shape, ratio, aligned)
        align, align_reference = launch.roi_align_backward, reference.roi_align_backward
    else:
        own = torch.arange(grad.shape[1:].numel(), dtype=torch.int32).view(1, channels, *pooled)
        into = (images, channels * pooled[0] * pooled[1], height, width)
        how = (own.expand(grad.shape), scale, *pooled, ratio, *into)
        align, align_reference = launch.ps_roi_align_backward, reference.ps_roi_align_backward
    got = assert_same_bits_in_any_schedule(lambda: align(grad, rois, *how), seed)
    assert_close(got, align_reference, grad, rois, *how)


@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), sizes, sizes),
    seed=SEEDS,
)
def test_roi_pool(
    data: st.DataObject, dtype: torch.dtype, shape: tuple[int, int, int, int], seed: int
) -> None:
    """Every gradient arrives where argmax says, and the sum is rounded once."""
    images, channels, height, width = shape
    *pooled, _ = data.draw(bins(dtype))
    rois = data.draw(boxes(dtype, images, height, width, exact=True))
    grad = data.draw(gradients(dtype, len(rois), channels, *pooled))
    spread = data.draw(st.sampled_from([1, height * width]))
    argmax = Maker(dtype, seed=seed).integers(-1, spread, *grad.shape, dtype=torch.int32)
    how = (argmax, 1.0, *pooled, *shape)
    got = assert_same_bits_in_any_schedule(lambda: launch.roi_pool_backward(grad, rois, *how), seed)
    assert_close(got, reference.roi_pool_backward, grad, rois, *how)


@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 2), sizes, sizes),
    scale=st.sampled_from([1.0, 0.5]),
    seed=SEEDS,
)
def test_ps_roi_pool(
    data: st.DataObject,
    dtype: torch.dtype,
    shape: tuple[int, int, int, int],
    scale: float,
    seed: int,
) -> None:
    """The pixels of the bins are those that the reference finds in the same dtype."""
    images, channels, height, width = shape
    *pooled, _ = data.draw(bins(torch.float32))
    rois = data.draw(boxes(dtype, images, height, width, exact=True))
    grad = data.draw(gradients(dtype, len(rois), channels, *pooled))
    own = torch.arange(grad.shape[1:].numel(), dtype=torch.int32).view(1, channels, *pooled)
    into = (images, channels * pooled[0] * pooled[1], height, width)
    how = (own.expand(grad.shape), scale, *pooled, *into)
    got = assert_same_bits_in_any_schedule(
        lambda: launch.ps_roi_pool_backward(grad, rois, *how), seed
    )
    expected = reference.ps_roi_pool_backward(grad, rois, *how).double()
    magnitude = reference.ps_roi_pool_backward(grad.abs(), rois, *how).double()
    bound = (2 + len(rois)) * torch.finfo(dtype).eps * magnitude + torch.finfo(dtype).tiny
    assert ((got.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e30, -1e30])
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("corner", [1, 2, 3, 4])
def test_far_boxes_end(value: float, aligned: bool, corner: int) -> None:
    """Boxes without an end, or of a size beyond all integers, take no time and write no NaN."""
    rois = torch.tensor([[0.0, 1, 1, 5, 5]])
    rois[0, corner] = value
    shape, grad = (1, 1, 6, 6), torch.ones(1, 1, 2, 2)
    own = torch.arange(4, dtype=torch.int32).view(1, 1, 2, 2)
    into = (1, 4, 6, 6)
    for got in (
        launch.roi_align_backward(grad, rois, 1.0, 2, 2, *shape, 0, aligned),
        launch.ps_roi_align_backward(grad, rois, own, 1.0, 2, 2, 0, *into),
        launch.ps_roi_pool_backward(grad, rois, own, 1.0, 2, 2, *into),
    ):
        assert got.isfinite().all()
