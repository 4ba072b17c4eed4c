"""Max pooling's backward on the host runner, over shapes, windows, ties, layouts and dtypes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from detmode.cuda import host, unavailable
from detmode.cuda.rows import chosen_windows as gather
from detmode.rules.adaptive_max_pool import launch as adaptive_max_pool
from detmode.rules.max_pool3d import launch as max_pool3d
from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))

LAYOUTS = ("contiguous", "channels_last", "sliced", "transposed")
INF, NAN = float("inf"), float("nan")

sizes = st.one_of(st.integers(1, 9), st.integers(1, 4), st.sampled_from([1, 16, 63]))
leading = st.lists(st.integers(1, 11), min_size=1, max_size=2)
seeds = st.integers(0, 2**32 - 1)
# A thread serves one plane, or several: normally that depends on the number of elements.
many = st.sampled_from([0, 2**62])
# Whatever the sizes, a kernel may count in 64 bits; these sizes are small enough for 32 too.
counted = st.sampled_from([lambda *counts: "int32_t", lambda *counts: "int64_t"])


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """The same values with other strides."""
    if layout == "channels_last" and tensor.dim() in (4, 5):
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return tensor.contiguous(memory_format=formats[tensor.dim()])
    if layout == "sliced":
        return tensor.repeat_interleave(2, -1).repeat_interleave(3, 0)[1::3, ..., ::2]
    if layout == "transposed":
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    return tensor


@st.composite
def inputs(draw: st.DrawFn, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Small integers, so that windows have ties; the fewer there are, the more."""
    values = draw(st.integers(1, 7))
    tensor = Maker(dtype, seed=draw(seeds)).integers(0, values, *shape, dtype=dtype)
    return laid_out(tensor, draw(st.sampled_from(LAYOUTS)))


@st.composite
def gradients(draw: st.DrawFn, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of wide range in some layout, in half of the cases with one special value."""
    tensor = Maker(dtype, seed=draw(seeds)).normal(*shape)
    special = draw(st.sampled_from([None, None, None, NAN, INF, -INF, -0.0]))
    if special is not None and tensor.numel():
        tensor.view(-1)[draw(st.integers(0, tensor.numel() - 1))] = special
    return laid_out(tensor, draw(st.sampled_from(LAYOUTS)))


def same_bits(first: Tensor, second: Tensor) -> bool:
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[first.itemsize]
    return torch.equal(first.contiguous().view(integer), second.contiguous().view(integer))


def wide_strides(tensor: Tensor) -> list[int]:
    """The strides of the dimensions where one means something."""
    return [s for s, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def assert_close_to_exact(got: Tensor, exact: Tensor, magnitude: Tensor, windows: int) -> None:
    """One rounding, in the opmath dtype and then in the dtype, of a sum of `windows` gradients.

    `magnitude` is the sum of their absolute values. `exact` is a float64 result of ATen's, with a
    rounding for each addition.
    """
    unit = torch.finfo(torch.float64 if got.dtype is torch.float64 else torch.float32).eps / 2
    bound = unit * exact.abs() + 4 * (windows * unit) ** 2 * magnitude
    bound = bound + windows * torch.finfo(torch.float64).eps * magnitude
    if got.dtype not in (torch.float32, torch.float64):
        bound = bound + torch.finfo(got.dtype).eps / 2 * (exact.abs() + bound)
    bound = bound * 1.001 + torch.finfo(got.dtype).smallest_normal * torch.finfo(got.dtype).eps
    finite = exact.isfinite()
    assert torch.equal(exact.isnan(), got.isnan())
    assert torch.equal(exact[exact.isinf()], got[exact.isinf()].double())
    error = (got.double() - exact).abs()
    assert (error[finite] <= bound[finite]).all(), (error - bound)[finite].max()
    assert not (got.signbit() & (got == 0)).any(), "sums start from +0.0"


@settings(deadline=None)
@given(data=st.data(), dtype=st.sampled_from(FLOATING))
def test_max_pool3d(data: st.DataObject, dtype: torch.dtype) -> None:
    """Within the bound of float64, the bits of any schedule, the operator's memory format."""
    planes = data.draw(leading)
    kernel = [data.draw(st.integers(1, 5)) for _ in range(3)]
    dilation = [data.draw(st.sampled_from([1, 1, 2, 3, 4])) for _ in range(3)]
    padding = [data.draw(st.integers(0, k // 2)) for k in kernel]
    stride = data.draw(st.one_of(st.just([]), st.lists(st.integers(1, 7), min_size=3, max_size=3)))
    if data.draw(st.booleans()):
        kernel, dilation, padding, stride = kernel[:1], dilation[:1], padding[:1], stride[:1]
    spans = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    # Every window has an element: otherwise ATen gives it an index beyond the input.
    size_in = [span + data.draw(sizes) for span in (spans if len(spans) == 3 else spans * 3)]
    assume(math.prod(planes) * math.prod(size_in) < 20_000)
    window = (kernel, stride, padding, dilation, data.draw(st.booleans()))
    self = data.draw(inputs(planes + size_in, dtype))
    pooled, indices = torch.ops.aten.max_pool3d_with_indices(self.double().contiguous(), *window)
    assume(bool(pooled.isfinite().all()))
    indices = laid_out(indices, data.draw(st.sampled_from(LAYOUTS)))
    grad_output = data.draw(gradients(pooled.shape, dtype))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "MANY", data.draw(many))
        patch.setattr(gather, "index_ctype", data.draw(counted))
        run = max_pool3d.max_pool3d_with_indices_backward
        got = run(grad_output, self, *window, indices)
        with host.schedule(data.draw(seeds)):
            assert same_bits(got, run(grad_output, self, *window, indices))
    aten = torch.ops.aten.max_pool3d_with_indices_backward
    indices = indices.contiguous()
    plain = self.double().contiguous()
    exact = aten(grad_output.double().contiguous(), plain, *window, indices)
    magnitude = aten(grad_output.double().abs().contiguous(), plain, *window, indices)
    like = aten(grad_output.to("meta"), self.to("meta"), *window, indices.to("meta"))
    assert (got.dtype, got.shape) == (dtype, self.shape)
    assert wide_strides(got) == wide_strides(like)
    windows = math.prod(kernel) if len(kernel) == 3 else kernel[0] ** 3
    assert_close_to_exact(got, exact, magnitude, windows)


@settings(deadline=None)
@given(data=st.data(), spatial=st.sampled_from([2, 3]), dtype=st.sampled_from(FLOATING))
def test_adaptive_max_pool(data: st.DataObject, spatial: int, dtype: torch.dtype) -> None:
    """Within the bound of float64, the bits of any schedule, the operator's memory format."""
    axes = st.lists(sizes, min_size=spatial, max_size=spatial)
    planes, size_in, size_out = data.draw(leading), data.draw(axes), data.draw(axes)
    assume(math.prod(planes) * max(math.prod(size_in), math.prod(size_out)) < 20_000)
    self = data.draw(inputs(planes + size_in, dtype))
    forward = getattr(torch.ops.aten, f"adaptive_max_pool{spatial}d")
    indices = forward(self.double().contiguous(), size_out)[1]
    indices = laid_out(indices, data.draw(st.sampled_from(LAYOUTS)))
    grad_output = data.draw(gradients(planes + size_out, dtype))
    function = getattr(adaptive_max_pool, f"adaptive_max_pool{spatial}d_backward")
    aten = getattr(torch.ops.aten, f"adaptive_max_pool{spatial}d_backward")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "MANY", data.draw(many))
        patch.setattr(gather, "index_ctype", data.draw(counted))
        got = function(grad_output, self, indices)
        with host.schedule(data.draw(seeds)):
            assert same_bits(got, function(grad_output, self, indices))
    indices = indices.contiguous()
    plain = self.double().contiguous()
    exact = aten(grad_output.double().contiguous(), plain, indices)
    magnitude = aten(grad_output.double().abs().contiguous(), plain, indices)
    like = aten(grad_output.to("meta"), self.to("meta"), indices.to("meta"))
    assert (got.dtype, got.shape) == (dtype, self.shape)
    assert wide_strides(got) == wide_strides(like)
    windows = math.prod(o // i + 2 for i, o in zip(size_in, size_out, strict=True))
    assert_close_to_exact(got, exact, magnitude, windows)


OUTSIDE = (-(2**63), -1, 10**6, 2**63 - 1)


@pytest.mark.parametrize("index", OUTSIDE)
def test_an_index_outside_its_window_is_left_out(index: int) -> None:
    """Indices that point anywhere make no access out of bounds, and no gradient."""
    self, grad_output = torch.zeros(1, 2, 4, 4, 4), torch.ones(1, 2, 2, 2, 2)
    indices = torch.full(grad_output.shape, index)
    pooled = max_pool3d.max_pool3d_with_indices_backward(
        grad_output, self, [2], [2], [0], [1], False, indices
    )
    assert torch.equal(pooled, self)
    adaptive = adaptive_max_pool.adaptive_max_pool3d_backward(grad_output, self, indices)
    assert torch.equal(adaptive, self)
    flat = (grad_output[:, :, 0], self[:, :, 0], indices[:, :, 0])
    assert torch.equal(adaptive_max_pool.adaptive_max_pool2d_backward(*flat), flat[1])


def test_a_window_without_an_element() -> None:
    """Dilation wider than the input: the window has no gradient to give."""
    grad_output = torch.ones(1, 2, 1, 1)
    grad_input = max_pool3d.max_pool3d_with_indices_backward(
        grad_output,
        torch.zeros(1, 1, 1, 1),
        [2, 1, 1],
        [1],
        [2, 0, 0],
        [3, 1, 1],
        False,
        torch.ones(1, 2, 1, 1, dtype=torch.int64),
    )
    assert torch.equal(grad_input, torch.zeros(1, 1, 1, 1))


def test_what_does_not_go_together_is_rejected() -> None:
    """Where ATen would read beyond a tensor, or take an index of another dtype."""
    self, grad = torch.zeros(2, 3, 4, 4, 4), torch.ones(2, 3, 2, 2, 2)
    indices = torch.zeros(2, 3, 2, 2, 2, dtype=torch.int64)
    window = ([2], [2], [0], [1], False)
    run = max_pool3d.max_pool3d_with_indices_backward
    adaptive = adaptive_max_pool.adaptive_max_pool3d_backward
    with pytest.raises(RuntimeError, match="batch and channel sizes"):
        run(grad[:1], self, *window, indices[:1])
    with pytest.raises(RuntimeError, match="batch and channel sizes"):
        adaptive(grad[:1], self, indices[:1])
    with pytest.raises(RuntimeError, match="shape of grad_output"):
        run(grad, self, *window, indices[:1])
    with pytest.raises(RuntimeError, match="shape of grad_output"):
        adaptive(grad, self, indices[:1])
    with pytest.raises(RuntimeError, match="expected scalar type"):
        run(grad, self, *window, indices.int())
    with pytest.raises(RuntimeError, match="expected scalar type"):
        adaptive(grad, self, indices.int())
    with pytest.raises(RuntimeError, match="greater than zero"):
        run(grad, self, [2], [0], [0], [1], False, indices)


def test_products_beyond_32_bits() -> None:
    """A position times a size that no 32 bits hold, though the tensors are small."""
    self = torch.randn(1, 1, 1, 70_000)
    indices = torch.ops.aten.adaptive_max_pool2d(self, [1, 69_999])[1]
    grad_output = torch.randn(1, 1, 1, 69_999)
    exact = torch.ops.aten.adaptive_max_pool2d_backward(grad_output, self, indices)
    assert same_bits(
        adaptive_max_pool.adaptive_max_pool2d_backward(grad_output, self, indices), exact
    )
