"""Average pooling's backward on the host runner, over shapes, strides, dtypes and arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from detmode.cuda import host, unavailable
from detmode.rules.adaptive_avg_pool import launch as adaptive_avg_pool
from detmode.rules.avg_pool3d import launch as avg_pool3d
from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker

pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))

LAYOUTS = ("contiguous", "channels_last", "sliced", "transposed", "expanded")
INF, NAN = float("inf"), float("nan")

sizes = st.one_of(st.integers(1, 9), st.integers(1, 4), st.sampled_from([1, 16, 63]))
leading = st.lists(st.integers(1, 11), min_size=1, max_size=2)
seeds = st.integers(0, 2**32 - 1)
# A thread serves one plane, or several: normally that depends on the number of elements.
many = st.sampled_from([0, 2**62])
# Whatever the sizes, a kernel may count in 64 bits; these sizes are small enough for 32 too.
counted = st.sampled_from([lambda *counts: "int32_t", lambda *counts: "int64_t"])


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """The same values with other strides (the same shape alone where the layout repeats values)."""
    if layout == "channels_last" and tensor.dim() in (4, 5):
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return tensor.contiguous(memory_format=formats[tensor.dim()])
    if layout == "sliced":
        return tensor.repeat_interleave(2, -1).repeat_interleave(3, 0)[1::3, ..., ::2]
    if layout == "transposed":
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "expanded":
        return tensor[..., :1].expand(tensor.shape)
    return tensor


@st.composite
def tensors(draw: st.DrawFn, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of wide range in some layout, in half of the cases with one special value."""
    tensor = Maker(dtype, seed=draw(seeds)).normal(*shape)
    special = draw(st.sampled_from([None, None, None, NAN, INF, -INF, -0.0]))
    if special is not None and tensor.numel():
        tensor.view(-1)[draw(st.integers(0, tensor.numel() - 1))] = special
    return laid_out(tensor, draw(st.sampled_from(LAYOUTS)))


def same_bits(first: Tensor, second: Tensor) -> bool:
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[first.itemsize]
    return torch.equal(first.contiguous().view(integer), second.contiguous().view(integer))


def assert_close_to_exact(
    got: Tensor, exact: Tensor, magnitude: Tensor, windows: int, line: int = 0
) -> None:
    """One rounding, in the opmath dtype and then in the dtype, of a sum of `windows` shares.

    `magnitude` is the sum of the shares' absolute values, `line` how many of them may be added with
    a rounding each. `exact` is a float64 result of `windows` roundings.
    """
    unit = torch.finfo(torch.float64 if got.dtype is torch.float64 else torch.float32).eps / 2
    second_order = 4 * ((windows + 2) * unit) ** 2
    bound = unit * exact.abs() + (second_order + line * unit) * magnitude
    bound = bound + (windows + 2) * torch.finfo(torch.float64).eps * magnitude
    if got.dtype not in (torch.float32, torch.float64):
        bound = bound + torch.finfo(got.dtype).eps / 2 * (exact.abs() + bound)
    bound = bound * 1.001 + torch.finfo(got.dtype).smallest_normal * torch.finfo(got.dtype).eps
    finite = exact.isfinite()
    assert torch.equal(exact.isnan(), got.isnan())
    assert torch.equal(exact[exact.isinf()], got[exact.isinf()].double())
    error = (got.double() - exact).abs()
    assert (error[finite] <= bound[finite]).all(), (error - bound)[finite].max()


@settings(deadline=None)
@given(data=st.data(), spatial=st.sampled_from([2, 3]), dtype=st.sampled_from(FLOATING))
def test_adaptive_avg_pool(data: st.DataObject, spatial: int, dtype: torch.dtype) -> None:
    """Within the bound of float64, the bits of any schedule, ATen's memory format."""
    axes = st.lists(sizes, min_size=spatial, max_size=spatial)
    planes, size_in, size_out = data.draw(leading), data.draw(axes), data.draw(axes)
    assume(math.prod(planes) * max(math.prod(size_in), math.prod(size_out)) < 20_000)
    grad_output = data.draw(tensors(planes + size_out, dtype))
    self = data.draw(tensors(planes + size_in, dtype))
    function = getattr(adaptive_avg_pool, f"adaptive_avg_pool{spatial}d_backward")
    aten = getattr(torch.ops.aten, f"_adaptive_avg_pool{spatial}d_backward")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adaptive_avg_pool, "MANY", data.draw(many))
        patch.setattr(adaptive_avg_pool, "index_ctype", data.draw(counted))
        got = function(grad_output, self)
        with host.schedule(data.draw(seeds)):
            assert same_bits(got, function(grad_output, self))
    exact = aten(grad_output.double(), self.double())
    magnitude = aten(grad_output.double().abs(), self.double())
    windows = math.prod(o // i + 2 for i, o in zip(size_in, size_out, strict=True))
    assert (got.dtype, got.shape) == (dtype, self.shape)
    like = aten(grad_output, self).stride() if spatial == 2 else torch.empty(self.shape).stride()
    wide = [size > 1 for size in self.shape]
    assert [s for s, w in zip(got.stride(), wide, strict=True) if w] == [
        s for s, w in zip(like, wide, strict=True) if w
    ]
    assert_close_to_exact(got, exact, magnitude, windows)


@settings(deadline=None)
@given(data=st.data(), dtype=st.sampled_from(FLOATING))
def test_avg_pool3d(data: st.DataObject, dtype: torch.dtype) -> None:
    """Within the bound of float64, the bits of any schedule, contiguous as on CUDA."""
    planes = data.draw(leading)
    kernel = [data.draw(st.integers(1, 6)) for _ in range(3)]
    padding = [data.draw(st.integers(0, k // 2)) for k in kernel]
    stride = data.draw(st.one_of(st.just([]), st.lists(st.integers(1, 7), min_size=3, max_size=3)))
    if data.draw(st.booleans()):
        kernel, padding, stride = kernel[:1], padding[:1], stride[:1]
    size_in = [k - 1 + data.draw(sizes) for k in (kernel if len(kernel) == 3 else kernel * 3)]
    assume(math.prod(planes) * math.prod(size_in) < 20_000)
    arguments = (
        kernel,
        stride,
        padding,
        data.draw(st.booleans()),
        data.draw(st.booleans()),
        data.draw(st.sampled_from([None, None, 1, 7, -3])),
    )
    meta = torch.empty(planes + size_in, device="meta")
    shape = torch.ops.aten.avg_pool3d(meta, *arguments).shape
    grad_output = data.draw(tensors(list(shape), dtype))
    self = data.draw(tensors(planes + size_in, dtype))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avg_pool3d, "MANY", data.draw(many))
        patch.setattr(avg_pool3d, "index_ctype", data.draw(counted))
        got = avg_pool3d.avg_pool3d_backward(grad_output, self, *arguments)
        with host.schedule(data.draw(seeds)):
            again = avg_pool3d.avg_pool3d_backward(grad_output, self, *arguments)
            assert same_bits(got, again)
    aten = torch.ops.aten.avg_pool3d_backward
    exact = aten(grad_output.double(), self.double(), *arguments)
    positive = (*arguments[:-1], abs(arguments[-1]) if arguments[-1] else None)
    magnitude = aten(grad_output.double().abs(), self.double(), *positive)
    steps = stride or kernel
    windows = math.prod(-(-k // s) for k, s in zip(kernel, steps, strict=True))
    windows = windows if len(kernel) == 3 else windows**3
    assert (got.dtype, got.shape, got.is_contiguous()) == (dtype, self.shape, True)
    assert_close_to_exact(got, exact, magnitude, windows, line=-(-kernel[-1] // steps[-1]))


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_avg_pool3d_survives_a_sum_beyond_the_range(dtype: torch.dtype) -> None:
    """Where windows share a divisor, finite gradients give a finite result as in ATen."""
    self = torch.empty(1, 1, 3, 3, 3, dtype=dtype)
    grad_output = torch.full_like(self, torch.finfo(dtype).max / 2)
    grad_input = avg_pool3d.avg_pool3d_backward(grad_output, self, [3], [1], [1], False, True, None)
    assert grad_input.isfinite().all()
    assert grad_input[0, 0, 1, 1, 1].item() == pytest.approx(torch.finfo(dtype).max / 2, rel=1e-2)


@pytest.mark.parametrize("spatial", [2, 3])
def test_adaptive_avg_pool_of_nothing(spatial: int) -> None:
    """Without elements nothing is launched, and what ATen rejects is rejected."""
    function = getattr(adaptive_avg_pool, f"adaptive_avg_pool{spatial}d_backward")
    size_in, size_out = (5,) * spatial, (2,) * spatial
    empty = function(torch.empty(0, 3, *size_out), torch.empty(0, 3, *size_in))
    assert empty.shape == (0, 3, *size_in)
    with pytest.raises(RuntimeError, match="non-zero size for non-batch dimensions"):
        function(torch.empty(2, 3, *size_out[1:], 0), torch.empty(2, 3, *size_in))
    with pytest.raises(RuntimeError, match="batch and channel sizes"):
        function(torch.empty(1, 3, *size_out), torch.empty(2, 3, *size_in))


def test_products_beyond_32_bits() -> None:
    """Positions times sizes, and windows, that no 32 bits hold, though the tensors are small."""
    grad_output, self = torch.randn(1, 1, 1, 69_999), torch.zeros(1, 1, 1, 70_000)
    exact = torch.ops.aten._adaptive_avg_pool2d_backward(grad_output.double(), self.double())
    got = adaptive_avg_pool.adaptive_avg_pool2d_backward(grad_output, self)
    torch.testing.assert_close(got.double(), exact, rtol=1e-6, atol=1e-6)
    grad_output, self = torch.randn(1, 1, 2, 2, 2), torch.zeros(1, 1, 1, 1, 1)
    window = ([4000] * 3, [1] * 3, [2000] * 3, False, True, None)
    # All eight windows hold the one position, and 4000**3 with the padding.
    got = avg_pool3d.avg_pool3d_backward(grad_output, self, *window)
    exact = grad_output.double().sum() / 4000.0**3
    torch.testing.assert_close(got.double().squeeze(), exact, rtol=1e-6, atol=0.0)
