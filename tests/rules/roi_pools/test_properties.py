"""Pooling over regions on the host runner, over shapes, boxes, grids, layouts and dtypes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from detmode.rules.roi_pools import launch, reference
from detmode.rules.roi_pools.gather import DTYPES
from detmode.table.samples import Maker
from tests.shared import needs
from tests.shared.selection import todays_dtypes
from tests.shared.strategies import LAYOUTS, SEEDS, in_schedules

pytestmark = needs.compiler

ANY_DTYPE = st.sampled_from(todays_dtypes(DTYPES))
MOST = 48
"""No coordinate is larger, in pixels."""

sizes = st.one_of(st.integers(1, 9), st.sampled_from([1, 8, 9, 33, 40]))
SCALES = st.sampled_from([1.0, 0.5])
counts = st.one_of(st.integers(0, 6), st.sampled_from([1, 40, 260]))


@st.composite
def bins(draw: st.DrawFn, dtype: torch.dtype) -> tuple[int, int, bool]:
    """Rows and columns of bins, and whether all positions are exact in any dtype.

    Where they are, in steps of 1/8 pixel, samples meet the border exactly.
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
def calls(
    draw: st.DrawFn, most: int, dtype: torch.dtype, grid: torch.dtype, exact: bool | None = None
) -> tuple[Tensor, Tensor, list[int], tuple[int, int, int, int]]:
    """The gradient and the boxes; rows and columns of bins; and the shape of the images.

    At most ``most`` channels; bins whose positions are exact in the dtype ``grid``.
    """
    images, height, width = draw(st.integers(1, 3)), draw(sizes), draw(sizes)
    channels = draw(st.sampled_from([1, 2, most]))
    *pooled, found = draw(bins(grid))
    rois = draw(boxes(dtype, images, height, width, found if exact is None else exact))
    grad = Maker(dtype, seed=draw(SEEDS)).normal(len(rois), channels, *pooled)
    return draw(LAYOUTS)(grad), rois, pooled, (images, channels, height, width)


def own_channels(
    grad: Tensor, shape: tuple[int, int, int, int]
) -> tuple[Tensor, tuple[int, int, int, int]]:
    """A position-sensitive call's channel of each bin, and the shape of its images."""
    mapping = torch.arange(grad.shape[1:].numel(), dtype=torch.int32).view(1, *grad.shape[1:])
    return mapping.expand(grad.shape), (shape[0], mapping.numel(), *shape[2:])


def assume_decided(
    rois: Tensor, scale: float, pooled: list[int], size: tuple[int, ...], ratio: int, aligned: bool
) -> None:
    """Leave out boxes of which a rounding decides on which side of the border a sample is.

    Or how many samples a bin has. Positions that are exact decide themselves.
    """
    margin = 6 * MOST * torch.finfo(torch.float32).eps
    for roi in rois.double():
        x1, y1, x2, y2 = (roi[1:] * scale - (0.5 if aligned else 0)).unbind()
        for begin, end, bins, border in (y1, y2, pooled[0], size[0]), (x1, x2, pooled[1], size[1]):
            _, at, bin_size, _ = reference.samples(begin, end, bins, ratio, aligned)
            near = [at + 1, at - border, *([bin_size - bin_size.round()] if ratio <= 0 else [])]
            distance = torch.cat([each.reshape(-1) for each in near]).abs()
            assume(not ((distance > 0) & (distance < margin)).any())


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
    data=st.data(), dtype=ANY_DTYPE, scale=SCALES, ratio=st.integers(-1, 3), aligned=st.booleans()
)
def test_roi_align(
    data: st.DataObject, dtype: torch.dtype, scale: float, ratio: int, aligned: bool
) -> None:
    """The gradient is the reference's in float64 but for roundings, in any schedule."""
    grad, rois, pooled, shape = data.draw(calls(17, dtype, dtype))
    how = (scale, *pooled, *shape, ratio, aligned)
    assume_decided(rois, scale, pooled, shape[2:], ratio, aligned)
    got = in_schedules(lambda: launch.roi_align_backward(grad, rois, *how), data.draw(SEEDS))
    assert_close(got, reference.roi_align_backward, grad, rois, *how)


@given(data=st.data(), dtype=ANY_DTYPE, scale=SCALES, ratio=st.integers(-1, 3))
def test_ps_roi_align(data: st.DataObject, dtype: torch.dtype, scale: float, ratio: int) -> None:
    """The same where every bin has a channel of its own."""
    grad, rois, pooled, shape = data.draw(calls(2, dtype, dtype))
    mapping, into = own_channels(grad, shape)
    how = (mapping, scale, *pooled, ratio, *into)
    assume_decided(rois, scale, pooled, shape[2:], ratio, True)
    got = in_schedules(lambda: launch.ps_roi_align_backward(grad, rois, *how), data.draw(SEEDS))
    assert_close(got, reference.ps_roi_align_backward, grad, rois, *how)


@given(data=st.data(), dtype=ANY_DTYPE)
def test_roi_pool(data: st.DataObject, dtype: torch.dtype) -> None:
    """Every gradient arrives where argmax says, and the sum is rounded once."""
    grad, rois, pooled, shape = data.draw(calls(2, dtype, dtype, exact=True))
    spread = data.draw(st.sampled_from([1, shape[2] * shape[3]]))
    make = Maker(dtype, seed=data.draw(SEEDS))
    argmax = make.integers(-1, spread, *grad.shape, dtype=torch.int32)
    how = (argmax, 1.0, *pooled, *shape)
    got = in_schedules(lambda: launch.roi_pool_backward(grad, rois, *how), data.draw(SEEDS))
    assert_close(got, reference.roi_pool_backward, grad, rois, *how)


@given(data=st.data(), dtype=ANY_DTYPE, scale=SCALES)
def test_ps_roi_pool(data: st.DataObject, dtype: torch.dtype, scale: float) -> None:
    """The pixels of the bins are those that the reference finds in the same dtype."""
    grad, rois, pooled, shape = data.draw(calls(2, dtype, torch.float32, exact=True))
    mapping, into = own_channels(grad, shape)
    how = (mapping, scale, *pooled, *into)
    got = in_schedules(lambda: launch.ps_roi_pool_backward(grad, rois, *how), data.draw(SEEDS))
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
