"""Pooling's backward on the host runner, over shapes, windows, ties, layouts and dtypes."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from detmode.cuda import host
from detmode.cuda.rows import chosen_windows
from detmode.cuda.rows.chosen_windows import Pooled, entry_of, gather_chosen, write_chosen
from detmode.cuda.rows.shares import Share
from detmode.rules.adaptive_avg_pool import launch as adaptive_avg_pool
from detmode.rules.adaptive_max_pool import launch as adaptive_max_pool
from detmode.rules.avg_pool3d import launch as avg_pool3d
from detmode.rules.max_pool3d import launch as max_pool3d
from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker
from tests.shared import needs
from tests.shared.selection import todays_dtypes
from tests.shared.strategies import FLOATS, LAYOUTS, SEEDS, SHARES, in_schedules, same_bits, tensors

pytestmark = needs.compiler

sizes = st.one_of(st.integers(1, 9), st.integers(1, 4), st.sampled_from([1, 16, 63]))
leading = st.lists(st.integers(1, 11), min_size=1, max_size=2)
strides = st.one_of(st.just([]), st.lists(st.integers(1, 7), min_size=3, max_size=3))


def assert_alike(one: Tensor, other: Tensor) -> None:
    """The same bits; the sign of a NaN may be that of any addend, as a compiler orders them."""
    assert same_bits(*(torch.where(each.isnan(), torch.nan, each) for each in (one, other)))


def formats(self: Tensor, spatial: int) -> list[torch.memory_format]:
    """The memory formats that a launch may give a tensor: without a batch there is one."""
    last = torch.channels_last if spatial == 2 else torch.channels_last_3d
    return [torch.contiguous_format, last][: self.dim() - spatial]


@st.composite
def inputs(draw: st.DrawFn, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Small integers, so that windows have ties; the fewer there are, the more."""
    make, most = Maker(dtype, seed=draw(SEEDS)), draw(st.integers(1, 7))
    return draw(LAYOUTS)(make.integers(0, most, *shape, dtype=dtype))


def assert_has_form(got: Tensor, like: Tensor) -> None:
    """The dtype, the shape, and the strides where a stride means something."""
    assert (got.dtype, got.shape) == (like.dtype, like.shape)
    wide = [d for d, size in enumerate(got.shape) if size > 1]
    assert [got.stride(d) for d in wide] == [like.stride(d) for d in wide]


def assert_close_to_exact(
    got: Tensor, exact: Tensor, magnitude: Tensor, windows: int, line: int = 0
) -> None:
    """One rounding, in the opmath dtype and then in the dtype, of a sum of `windows` shares.

    A share that is denormal is rounded by itself, as ATen's is.

    `magnitude` is the sum of the shares' absolute values, `line` how many of them may be added with
    a rounding each. `exact` is a float64 result of `windows` roundings.
    """
    limit = torch.finfo(got.dtype)
    unit = torch.finfo(torch.float64 if got.dtype is torch.float64 else torch.float32).eps / 2
    second_order = 4 * ((windows + 2) * unit) ** 2
    bound = unit * exact.abs() + (second_order + line * unit) * magnitude
    bound = bound + (windows + 2) * torch.finfo(torch.float64).eps * magnitude
    if limit.bits == 16:
        bound = bound + limit.eps / 2 * (exact.abs() + bound)
    bound = bound * 1.001 + max(1, windows / 2) * limit.smallest_normal * limit.eps
    finite = exact.isfinite()
    assert torch.equal(exact.isnan(), got.isnan())
    assert torch.equal(exact[exact.isinf()], got[exact.isinf()].double())
    error = (got.double() - exact).abs()
    assert (error[finite] <= bound[finite]).all(), (error - bound)[finite].max()


@given(data=st.data(), spatial=st.sampled_from([2, 3]), dtype=FLOATS)
def test_adaptive_avg_pool(data: st.DataObject, spatial: int, dtype: torch.dtype) -> None:
    """Within the bound of float64, the bits of any schedule, ATen's memory format."""
    axes = st.lists(sizes, min_size=spatial, max_size=spatial)
    planes, size_in, size_out = data.draw(leading), data.draw(axes), data.draw(axes)
    assume(math.prod(planes) * max(math.prod(size_in), math.prod(size_out)) < 20_000)
    grad = data.draw(tensors(planes + size_out, dtype))
    self = data.draw(tensors(planes + size_in, dtype))
    function = getattr(adaptive_avg_pool, f"adaptive_avg_pool{spatial}d_backward")
    aten = getattr(torch.ops.aten, f"_adaptive_avg_pool{spatial}d_backward")
    got, seed = in_schedules(lambda: function(grad, self), data.draw(SEEDS)), data.draw(SEEDS)
    format = data.draw(st.sampled_from(formats(self, spatial)))
    how = spatial, format, data.draw(SHARES)
    shared = in_schedules(lambda: adaptive_avg_pool.gather("", grad, self, *how), seed)
    assert_alike(shared.contiguous(), got.contiguous())
    assert_has_form(got, aten(grad, self) if spatial == 2 else self.contiguous())
    windows = math.prod(o // i + 2 for i, o in zip(size_in, size_out, strict=True))
    exact, magnitude = (aten(each, self.double()) for each in (grad.double(), grad.double().abs()))
    assert_close_to_exact(got, exact, magnitude, windows)


@pytest.mark.parametrize("counts_padding", [False, True])
@given(data=st.data(), dtype=FLOATS)
def test_avg_pool3d(counts_padding: bool, data: st.DataObject, dtype: torch.dtype) -> None:
    """Within the bound of float64, the bits of any schedule, contiguous as on CUDA."""
    draw, planes = data.draw, data.draw(leading)
    kernel = [draw(st.integers(1, 6)) for _ in range(3)]
    padding = [draw(st.integers(0, k // 2)) for k in kernel]
    stride = draw(strides)
    if draw(st.booleans()):
        kernel, padding, stride = kernel[:1], padding[:1], stride[:1]
    size_in = [k - 1 + draw(sizes) for k in (kernel if len(kernel) == 3 else kernel * 3)]
    assume(math.prod(planes) * math.prod(size_in) < 20_000)
    window = (kernel, stride, padding, draw(st.booleans()), counts_padding)
    divisor = draw(st.sampled_from([None, None, 1, 7, -3]))
    meta = torch.empty(planes + size_in, device="meta")
    grad = draw(tensors(torch.ops.aten.avg_pool3d(meta, *window, divisor).shape, dtype))
    self = draw(tensors(planes + size_in, dtype))
    got = in_schedules(
        lambda: avg_pool3d.avg_pool3d_backward(grad, self, *window, divisor), draw(SEEDS)
    )
    given = window[:3], *window[3:], divisor, draw(SHARES)
    assert_alike(in_schedules(lambda: avg_pool3d.gather(grad, self, *given), draw(SEEDS)), got)
    aten, wide = torch.ops.aten.avg_pool3d_backward, self.double()
    exact = aten(grad.double(), wide, *window, divisor)
    magnitude = aten(grad.double().abs(), wide, *window, abs(divisor) if divisor else None)
    steps = stride or kernel
    windows = math.prod(-(-k // s) for k, s in zip(kernel, steps, strict=True))
    windows = windows if len(kernel) == 3 else windows**3
    assert (got.dtype, got.shape, got.is_contiguous()) == (dtype, self.shape, True)
    assert_close_to_exact(got, exact, magnitude, windows, line=-(-kernel[-1] // steps[-1]))


def assert_chosen(
    data: st.DataObject,
    function: Callable[..., Tensor],
    aten: Callable[..., Tensor],
    self: Tensor,
    window: tuple[Any, ...],
    indices: Tensor,
    windows: int,
    gathers: Sequence[Callable[..., Tensor]],
) -> None:
    """Within the bound of float64, the bits of any schedule, the operator's memory format.

    The same bits have ``gathers``, called with the tensors, in any memory format.
    """
    grad, given = data.draw(tensors(indices.shape, self.dtype)), data.draw(LAYOUTS)(indices)
    got = in_schedules(lambda: function(grad, self, *window, given), data.draw(SEEDS))
    for gather in gathers:
        shared = in_schedules(partial(gather, grad, self, indices), data.draw(SEEDS))
        assert_alike(shared.contiguous(), got.contiguous())
    assert_has_form(got, aten(grad.to("meta"), self.to("meta"), *window, indices.to("meta")))
    wide, plain = grad.double().contiguous(), self.double().contiguous()
    exact, magnitude = (aten(each, plain, *window, indices) for each in (wide, wide.abs()))
    assert_close_to_exact(got, exact, magnitude, windows)
    assert not (got.signbit() & (got == 0)).any(), "sums start from +0.0"


@given(data=st.data(), dtype=FLOATS)
def test_max_pool3d(data: st.DataObject, dtype: torch.dtype) -> None:
    """Every gradient is added where the forward's index says."""
    draw, planes = data.draw, data.draw(leading)
    kernel = [draw(st.integers(1, 5)) for _ in range(3)]
    dilation = [draw(st.sampled_from([1, 1, 2, 3, 4])) for _ in range(3)]
    padding = [draw(st.integers(0, k // 2)) for k in kernel]
    stride = draw(strides)
    if draw(st.booleans()):
        kernel, dilation, padding, stride = kernel[:1], dilation[:1], padding[:1], stride[:1]
    spans = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    # Every window has an element: otherwise ATen gives it an index beyond the input.
    size_in = [span + draw(sizes) for span in (spans if len(spans) == 3 else spans * 3)]
    assume(math.prod(planes) * math.prod(size_in) < 20_000)
    window = (kernel, stride, padding, dilation, draw(st.booleans()))
    self, aten = draw(inputs(planes + size_in, dtype)), torch.ops.aten
    pooled, indices = aten.max_pool3d_with_indices(self.double().contiguous(), *window)
    assume(bool(pooled.isfinite().all()))
    windows = math.prod(kernel) if len(kernel) == 3 else kernel[0] ** 3
    name = "max_pool3d_with_indices_backward"
    functions = getattr(max_pool3d, name), getattr(aten, name)
    gathers = [
        partial(max_pool3d.gather, window=window[:4], memory_format=format, share=draw(SHARES))
        for format in formats(self, 3)
    ]
    assert_chosen(data, *functions, self, window, indices, windows, gathers)


@given(data=st.data(), spatial=st.sampled_from([2, 3]), dtype=FLOATS)
def test_adaptive_max_pool(data: st.DataObject, spatial: int, dtype: torch.dtype) -> None:
    """Every gradient is added where the forward's index says."""
    axes = st.lists(sizes, min_size=spatial, max_size=spatial)
    planes, size_in, size_out = data.draw(leading), data.draw(axes), data.draw(axes)
    assume(math.prod(planes) * max(math.prod(size_in), math.prod(size_out)) < 20_000)
    self, name = data.draw(inputs(planes + size_in, dtype)), f"adaptive_max_pool{spatial}d"
    indices = getattr(torch.ops.aten, name)(self.double().contiguous(), size_out)[1]
    windows = math.prod(o // i + 2 for i, o in zip(size_in, size_out, strict=True))
    functions = (getattr(each, f"{name}_backward") for each in (adaptive_max_pool, torch.ops.aten))
    format = data.draw(st.sampled_from(formats(self, spatial)))
    how = {"spatial": spatial, "memory_format": format, "share": data.draw(SHARES)}
    gathers = [partial(adaptive_max_pool.gather, **how)]
    assert_chosen(data, *functions, self, (), indices, windows, gathers)


def test_avg_pool3d_divides_a_window_beyond_the_padding_by_what_it_counts() -> None:
    """With ``ceil_mode`` the last window of an axis counts two positions, others three."""
    window = ([3], [2], [1], True, True, None)
    self = torch.empty(1, 1, 4, 4, 4, dtype=torch.float64)
    grad = Maker(torch.float64).normal(1, 1, 3, 3, 3)
    expected = torch.ops.aten.avg_pool3d_backward(grad, self, *window)
    torch.testing.assert_close(avg_pool3d.avg_pool3d_backward(grad, self, *window), expected)


@pytest.mark.parametrize("share", [Share(1, "int32_t"), Share(8, "int32_t")], ids=str)
def test_avg_pool3d_of_a_plane_depends_on_no_other(share: Share) -> None:
    """Infinities of one plane change no bit of another, which the same thread serves."""
    window = (((1, 1, 3), (1, 1, 1), (0, 0, 0)), False, True, None)
    m = Maker(torch.float32)
    self, grad = m.normal(8, 1, 1, 402), m.normal(8, 1, 1, 400)
    before = in_schedules(lambda: avg_pool3d.gather(grad, self, *window, share), 0)
    grad[0] = torch.inf
    after = in_schedules(lambda: avg_pool3d.gather(grad, self, *window, share), 0)
    assert same_bits(after[1:], before[1:])


@pytest.mark.parametrize("dtype", todays_dtypes(FLOATING), ids=str)
def test_avg_pool3d_survives_a_sum_beyond_the_range(dtype: torch.dtype) -> None:
    """Finite gradients give a finite result as in ATen, if windows share a divisor."""
    self = torch.empty(1, 1, 3, 3, 3, dtype=dtype)
    grad = torch.full_like(self, torch.finfo(dtype).max / 2)
    grad_input = avg_pool3d.avg_pool3d_backward(grad, self, [3], [1], [1], False, True, None)
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


@pytest.mark.parametrize("most", [0, 2**40])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last_3d], ids=str)
@pytest.mark.parametrize("size_out", [(1, 1, 1), (2, 3, 5), (4, 4, 13)], ids=str)
@pytest.mark.parametrize("dtype", todays_dtypes(FLOATING), ids=str)
def test_windows_that_choose_few_elements(
    dtype: torch.dtype, size_out: tuple[int, ...], format: torch.memory_format, most: int
) -> None:
    """Written by the first window that chose them, they have the bits of those that gather.

    Wherever indices point; ``most``: the largest number that is counted, in 32 bits or in 64.
    """
    m = Maker(dtype, seed=4)
    self, grad = m.normal(2, 3, 5, 6, 12), m.normal(2, 3, *size_out)
    indices = torch.ops.aten.adaptive_max_pool3d(self.double(), size_out)[1]
    indices[0, 1] = m.integers(-9, 369, *size_out)
    indices[1, ::2] += 2**32
    pooled = Pooled((2, 3), (5, 6, 12), size_out, format is torch.contiguous_format)
    share, arguments = pooled.share(most), (grad, self, indices, format)
    entry = entry_of(adaptive_max_pool.KERNEL, dtype, share)
    source = adaptive_max_pool.SOURCE
    every = gather_chosen(source, entry, pooled.laid_out(share), *arguments)
    write = partial(write_chosen, source, adaptive_max_pool.FEW, pooled, most, *arguments)
    with host.schedule(1), host.check_races():
        few = write()
    assert few.any()
    assert few.stride() == every.stride()
    assert same_bits(few, every)
    assert same_bits(in_schedules(write, 2), every)


@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last_3d], ids=str)
def test_windows_that_overlap_and_choose_few_elements(
    format: torch.memory_format, dilation: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of strided maxima that overlap the first window writes, with the bits of a gather."""
    m, window = Maker(torch.float32, seed=stride), ([5], [stride], [2], [dilation])
    self = m.integers(-3, 4, 2, 3, 10, 12, 12, dtype=torch.float32)
    indices = torch.ops.aten.max_pool3d_with_indices(self, *window)[1]
    assert any(plane.unique().numel() < plane.numel() for plane in indices.view(6, -1))
    grad = m.normal(*indices.shape)
    gather = partial(max_pool3d.gather, grad, self, indices, window, format)
    every = gather(Share(1, "int32_t"))
    monkeypatch.setattr(chosen_windows, "MANY", 1)
    with patch.object(max_pool3d, "write_chosen", wraps=chosen_windows.write_chosen) as write:
        with host.schedule(1), host.check_races():
            assert same_bits(gather(), every)
        assert same_bits(in_schedules(gather, 2), every)
    assert write.call_count == 3


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "few"),
    [
        (3, 2, 1, True),
        (2, 2, 1, False),
        (3, 3, 1, False),
        (3, 1, 1, False),
        (5, 3, 1, True),
        (2, 2, 2, True),
        (2, 4, 2, False),
    ],
)
def test_maxima_that_choose_few_elements(
    kernel: int, stride: int, dilation: int, few: bool
) -> None:
    """Overlapping windows of many elements each write what they chose; the others are gathered."""
    size = (64 - (kernel - 1) * dilation - 1) // stride + 1
    pooled = chosen_windows.Pooled((1, 64), (64,) * 3, (size,) * 3)
    windows, _ = max_pool3d._windows((kernel,), (stride,), (0,), (dilation,))
    assert max_pool3d._choose_few(pooled, windows) is few


@pytest.mark.parametrize("index", [-(2**63), -1, 10**6, 2**63 - 1])
def test_an_index_outside_its_window_is_left_out(index: int) -> None:
    """Indices that point anywhere make no access out of bounds, and no gradient."""
    self, grad = torch.zeros(1, 2, 4, 4, 4), torch.ones(1, 2, 2, 2, 2)
    indices = torch.full(grad.shape, index)
    window = ([2], [2], [0], [1], False)
    pooled = max_pool3d.max_pool3d_with_indices_backward(grad, self, *window, indices)
    assert torch.equal(pooled, self)
    adaptive = adaptive_max_pool.adaptive_max_pool3d_backward(grad, self, indices)
    assert torch.equal(adaptive, self)
    flat = (grad[:, :, 0], self[:, :, 0], indices[:, :, 0])
    assert torch.equal(adaptive_max_pool.adaptive_max_pool2d_backward(*flat), flat[1])


def test_a_window_without_an_element() -> None:
    """Dilation wider than the input: the window has no gradient to give."""
    self, grad = torch.zeros(1, 2, 1, 1), torch.ones(1, 1, 1, 1)
    window = ([2, 1, 1], [1], [1, 0, 0], [3, 1, 1], False)
    indices = torch.ones(1, 1, 1, 1, dtype=torch.int64)
    got = max_pool3d.max_pool3d_with_indices_backward(grad, self, *window, indices)
    assert torch.equal(got, self)


def test_what_does_not_go_together_is_rejected() -> None:
    """Calls in which ATen would read beyond a tensor, or take an index of another dtype."""
    self, grad = torch.zeros(2, 3, 4, 4, 4), torch.ones(2, 3, 2, 2, 2)
    indices = torch.zeros(2, 3, 2, 2, 2, dtype=torch.int64)
    pool = max_pool3d.max_pool3d_with_indices_backward
    for run, window in (
        (pool, ([2], [2], [0], [1], False)),
        (adaptive_max_pool.adaptive_max_pool3d_backward, ()),
    ):
        with pytest.raises(RuntimeError, match="batch and channel sizes"):
            run(grad[:1], self, *window, indices[:1])
        with pytest.raises(RuntimeError, match="shape of grad_output"):
            run(grad, self, *window, indices[:1])
        with pytest.raises(RuntimeError, match="expected scalar type"):
            run(grad, self, *window, indices.int())
    with pytest.raises(RuntimeError, match="greater than zero"):
        pool(grad, self, [2], [0], [0], [1], False, indices)


def test_products_beyond_32_bits() -> None:
    """Positions times sizes that no 32 bits hold, though the tensors are small."""
    grad, self = torch.randn(1, 1, 1, 69_999), torch.randn(1, 1, 1, 70_000)
    exact = torch.ops.aten._adaptive_avg_pool2d_backward(grad.double(), self.double())
    got = adaptive_avg_pool.adaptive_avg_pool2d_backward(grad, self)
    torch.testing.assert_close(got.double(), exact, rtol=1e-6, atol=1e-6)
    indices = torch.ops.aten.adaptive_max_pool2d(self, [1, 69_999])[1]
    exact = torch.ops.aten.adaptive_max_pool2d_backward(grad, self, indices)
    assert same_bits(adaptive_max_pool.adaptive_max_pool2d_backward(grad, self, indices), exact)
