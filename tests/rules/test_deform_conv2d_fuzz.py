"""Deformable convolution's backward on the host runner, over shapes, offsets, groups and dtypes."""

from __future__ import annotations

import inspect

import pytest
import torch
from exact_sums import SEEDS, assert_same_bits_in_any_schedule, laid_out
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode.cuda import unavailable
from detmode.rules.deform_conv2d import launch, reference
from detmode.table.samples import Maker

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))

LAYOUTS = ("contiguous", "transposed", "sliced")
NAMES = ("input", "weight", "offset", "mask", "bias")

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(
    data=st.data(),
    dtype=st.sampled_from(launch.DTYPES),
    images=st.sampled_from([0, 1, 2, 33]),
    # Channels of a weight group and of an offset group divide the input's.
    groups=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 2)),
    kernel=pairs,
    stride=pairs,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=pairs,
    output=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    spread=st.sampled_from([0, 8, 100]),
    use_mask=st.booleans(),
    seed=SEEDS,
)
def test_backward(
    data: st.DataObject,
    dtype: torch.dtype,
    images: int,
    groups: tuple[int, int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    output: tuple[int, int],
    spread: int,
    use_mask: bool,
    seed: int,
) -> None:
    """All five gradients are the reference's in float64 but for roundings, in any schedule."""
    weight_groups, offset_groups, each = groups
    channels = weight_groups * offset_groups * each
    size = [
        max(stride[d] * (output[d] - 1) + dilation[d] * (kernel[d] - 1) + 1 - 2 * padding[d], 1)
        for d in (0, 1)
    ]
    out = [
        (size[d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1
        for d in (0, 1)
    ]
    maker, taps = Maker(dtype, seed=seed), offset_groups * kernel[0] * kernel[1]

    def draw(*shape: int) -> Tensor:
        return laid_out(maker.normal(*shape), data.draw(st.sampled_from(LAYOUTS)))

    grad, input = draw(images, 2 * weight_groups, *out), draw(images, channels, *size)
    weight = draw(2 * weight_groups, channels // weight_groups, *kernel)
    offset = maker.integers(-spread, spread + 1, images, 2 * taps, *out).to(dtype) / 8
    mask = draw(images, taps, *out) if use_mask else draw(images, 1)
    tensors = (grad, input, weight, offset, mask, maker.normal(2 * weight_groups))
    how = (*stride, *padding, *dilation, weight_groups, offset_groups, use_mask)

    def run() -> Tensor:
        results = launch.deform_conv2d_backward(*tensors, *how)
        assert [each.shape for each in results] == [each.shape for each in tensors[1:]]
        assert all(each.dtype is dtype and each.is_contiguous() for each in results)
        return torch.cat([each.flatten() for each in results])

    got = assert_same_bits_in_any_schedule(run, seed)
    names = [*inspect.signature(launch.deform_conv2d_backward).parameters][len(tensors) :]
    exact = reference.deform_conv2d_backward(
        *(x.double() for x in tensors), **dict(zip(names, how))
    )
    # The slopes are differences of pixels: twice the largest bounds them.
    largest = [float(x.double().abs().max()) if x.numel() else 0.0 for x in tensors]
    assert_close(got, exact, largest, channels * kernel[0] * kernel[1], images * out[0] * out[1])


def assert_close(
    got: Tensor, exact: tuple[Tensor, ...], largest: list[float], taps: int, outputs: int
) -> None:
    """A few roundings of the largest addend, times the addends that a result may have."""
    grad, input, weight, _, mask, _ = largest
    tap, factor = 8 * grad * weight, max(mask, 1.0)
    addends = {
        "input": (taps * outputs, tap * factor),
        "weight": (outputs, grad * input * factor),
        "offset": (taps, 4 * tap * input * factor),
        "mask": (taps, tap * input),
        "bias": (outputs, grad),
    }
    info = torch.finfo(got.dtype)
    parts = got.double().split([each.numel() for each in exact])
    for name, mine, true in zip(NAMES, parts, exact):
        count, addend = addends[name]
        bound = 8 * info.eps * count**0.5 * addend * 4 + info.tiny
        finite = true.flatten().abs() < info.max / 4
        error = (mine - true.flatten())[finite].abs()
        assert bool((error <= bound).all()), (name, float(error.max()), bound)


def test_infinity_stays_at_its_pixel() -> None:
    """A place on a pixel gives nothing to the next one, not even an infinity times zero."""
    grad = torch.zeros(1, 1, 3, 3)
    grad[0, 0, 1, 1] = float("inf")
    one, offset, unused = torch.ones(1, 1, 1, 1), torch.zeros(1, 2, 3, 3), torch.zeros(1, 1)
    how = (1, 1, 0, 0, 1, 1, 1, 1, False)
    got = launch.deform_conv2d_backward(
        grad, torch.ones(1, 1, 3, 3), one, offset, unused, torch.zeros(1), *how
    )[0]
    assert torch.equal(got, grad)
