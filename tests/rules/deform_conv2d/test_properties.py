"""Deformable convolution's backward on the host runner, over shapes, offsets, groups and dtypes."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detmode.rules.deform_conv2d import launch, reference
from detmode.table.samples import Maker
from tests.shared import needs
from tests.shared.selection import todays_dtypes
from tests.shared.strategies import LAYOUTS, SEEDS, in_schedules

pytestmark = needs.compiler

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(data=st.data(), dtype=st.sampled_from(todays_dtypes(launch.DTYPES)), use_mask=st.booleans())
def test_backward(data: st.DataObject, dtype: torch.dtype, use_mask: bool) -> None:
    """All five gradients are the reference's in float64 but for roundings, in any schedule."""
    draw = data.draw
    images, spread = draw(st.sampled_from([0, 1, 2, 33])), draw(st.sampled_from([0, 8, 100]))
    # Channels of a weight group and of an offset group divide the input's.
    weight_groups, offset_groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    channels = weight_groups * offset_groups * draw(st.integers(1, 2))
    kernel, stride, dilation = draw(pairs), draw(pairs), draw(pairs)
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    output = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    covered = [dilation[d] * (kernel[d] - 1) + 1 - 2 * padding[d] for d in (0, 1)]
    size = [max(stride[d] * (output[d] - 1) + covered[d], 1) for d in (0, 1)]
    out = [(size[d] - covered[d]) // stride[d] + 1 for d in (0, 1)]
    maker, taps = Maker(dtype, seed=draw(SEEDS)), offset_groups * kernel[0] * kernel[1]

    def made(*shape: int) -> Tensor:
        return draw(LAYOUTS)(maker.normal(*shape))

    grad, input = made(images, 2 * weight_groups, *out), made(images, channels, *size)
    weight = made(2 * weight_groups, channels // weight_groups, *kernel)
    offset = maker.integers(-spread, spread + 1, images, 2 * taps, *out).to(dtype) / 8
    mask = made(images, taps, *out) if use_mask else made(images, 1)
    tensors = (grad, input, weight, offset, mask, maker.normal(2 * weight_groups))
    how = (*stride, *padding, *dilation, weight_groups, offset_groups, use_mask)
    results = in_schedules(lambda: launch.deform_conv2d_backward(*tensors, *how), draw(SEEDS))
    assert [each.shape for each in results] == [each.shape for each in tensors[1:]]
    assert all(each.dtype is dtype and each.is_contiguous() for each in results)
    exact = reference.deform_conv2d_backward(*(x.double() for x in tensors), *how)
    # The slopes are differences of pixels: twice the largest bounds them.
    largest = [float(x.double().abs().max()) if x.numel() else 0.0 for x in tensors]
    assert_close(
        results, exact, largest, channels * kernel[0] * kernel[1], images * out[0] * out[1]
    )


def assert_close(
    got: tuple[Tensor, ...],
    exact: tuple[Tensor, ...],
    largest: list[float],
    taps: int,
    outputs: int,
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
    info = torch.finfo(got[0].dtype)
    for (name, (count, addend)), mine, true in zip(addends.items(), got, exact, strict=True):
        bound = 8 * info.eps * count**0.5 * addend * 4 + info.tiny
        error = (mine.double() - true)[true.abs() < info.max / 4].abs()
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
