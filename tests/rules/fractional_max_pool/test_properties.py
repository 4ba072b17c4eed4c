"""Fractional max pooling's backward on the host runner, over shapes, regions and layouts."""

import math
from functools import partial
from unittest import mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from detmode.cuda import host
from detmode.cuda import launch as cuda_launch
from detmode.cuda.rows.chosen_windows import Pooled
from detmode.rules.fractional_max_pool import launch
from detmode.table.samples import Maker
from tests.shared import needs
from tests.shared.exact_sums import assert_exact
from tests.shared.strategies import (
    FLOATS,
    LAYOUTS,
    SEEDS,
    SHARES,
    SINGLE_OR_DOUBLE,
    in_schedules,
    tensors,
)

pytestmark = needs.compiler


@given(
    data=st.data(),
    n=st.sampled_from([2, 3]),
    dtype=FLOATS,
    seed=SEEDS,
    # Indices as the forward gives them, or any in the plane: ATen goes wherever they point.
    drawn=st.booleans(),
)
def test_backward(data: st.DataObject, n: int, dtype: torch.dtype, seed: int, drawn: bool) -> None:
    """Each element is the sum of the gradients that chose it, rounded once, in any schedule."""
    kernel = [data.draw(st.integers(1, 4)) for _ in range(n)]
    output = [data.draw(st.integers(1, 6)) for _ in range(n)]
    # The forward of 3d wants one element more than the regions need.
    sizes = [k + o + n - 3 + data.draw(st.integers(0, 7)) for k, o in zip(kernel, output)]
    leading = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    m = Maker(dtype, seed=seed)
    self = data.draw(LAYOUTS)(m.integers(-2, 3, *leading, *sizes, dtype=dtype))
    if drawn:
        indices = m.integers(0, math.prod(sizes), *leading, *output)
    else:
        batched = self.double().contiguous().view(-1, leading[-1], *sizes)
        starts = m.integers(0, 100, *batched.shape[:2], n).double() / 100
        pool = getattr(torch.ops.aten, f"fractional_max_pool{n}d")
        indices = pool(batched, kernel, output, starts)[1].view(*leading, *output)
    grad_output = data.draw(tensors(indices.shape, dtype))
    given_indices = data.draw(LAYOUTS)(indices)
    given_kernel = data.draw(
        st.sampled_from([kernel, kernel, [], [9] * n, [0] * n, [2**31] * n, [-1] * n])
    )
    arguments = n, grad_output, self, given_kernel, output, given_indices
    share = data.draw(SHARES)
    got = in_schedules(lambda: launch.gather(*arguments, share), seed)
    assert got.is_contiguous()
    zeros = torch.zeros(self.shape, dtype=dtype)
    planes = torch.arange(math.prod(leading)).view(*leading, *(1,) * n)
    assert_exact(got, zeros, indices + planes * math.prod(sizes), grad_output, include_self=False)


STARTS = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1 - 2.0**-24, 1.0, 3.7]))


@given(
    data=st.data(),
    start=STARTS,
    dtype=SINGLE_OR_DOUBLE,
    kernel=st.integers(1, 9),
    output=st.one_of(st.integers(1, 20), st.integers(1, 40_000)),
    more=st.one_of(st.integers(0, 30), st.integers(0, 200_000)),
)
def test_regions_are_found(
    data: st.DataObject, start: float, dtype: torch.dtype, kernel: int, output: int, more: int
) -> None:
    """Whatever the forward draws, the backward looks for an element where its region is."""
    size = kernel + output - 1 + more
    self = Maker(dtype, seed=data.draw(SEEDS)).integers(-9, 9, 1, 1, 1, size, dtype=dtype)
    starts = torch.tensor([[[start, 0.0]]], dtype=dtype)
    pool = torch.ops.aten.fractional_max_pool2d
    indices = pool(self, [1, kernel], [1, output], starts)[1]

    def gathered(indices: torch.Tensor) -> tuple[float, partial[None]]:
        """The number of regions that were found, and the launch for the others."""
        with mock.patch.object(launch, "launch") as launched:
            launch.gather(2, torch.ones(indices.shape, dtype=dtype), self, *sizes, indices)
        gather, again = (partial(cuda_launch, *c.args, **c.kwargs) for c in launched.call_args_list)
        gather()
        return gather.keywords["taken"].item(), again

    sizes = (1, kernel), (1, output)
    found, again = gathered(indices)
    assert found == output
    # Where none is missing, nothing is left to do.
    grad_input = again.keywords["grad_input"].fill_(7)
    again()
    assert (grad_input == 7).all()
    if more > kernel + 5 and output > 1:
        # The control: the first region cannot have chosen what the last one did.
        assert gathered(indices.flip(-1))[0] < output


@given(
    size=st.integers(1, 2**40),
    output=st.integers(1, 2**30),
    kernel=st.integers(-(2**63), 2**63 - 1),
)
@example(size=9, output=2, kernel=2**31)
@example(size=2**20, output=2**20, kernel=0)
@example(size=1, output=3, kernel=0)
def test_no_number_is_above_the_bound(size: int, output: int, kernel: int) -> None:
    """Of those that choose the type that the kernels count in, whatever the kernel size."""
    pooled = Pooled((1,), (1, 1, size), (1, 1, output))
    region = launch.regions_of(pooled, 2, (1, kernel)).w
    assert 0 <= region < 2**31
    if region < size:
        margin = 17 + size // 2**16
        lows = [16 * (i - region + 1) - margin for i in (0, size - 1)]
        highs = [16 * i + margin for i in (0, size - 1)]
        largest = max(map(abs, lows + highs)) * (output - 1)
        assert largest <= launch.most_computed(pooled)


@pytest.mark.parametrize("position", [-1, 16, 2**32])
def test_an_index_out_of_range_traps(position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU nothing checks the indices beforehand: the kernels do."""
    monkeypatch.setattr(launch, "check_on_host", lambda *args: None)
    self, grad_output = torch.zeros(1, 2, 4, 4), torch.ones(1, 2, 2, 2)
    indices = torch.full(grad_output.shape, position)
    with pytest.raises(host.DeviceAssert):
        launch.fractional_max_pool2d_backward(grad_output, self, [2, 2], [2, 2], indices)


def test_what_does_not_go_together_is_rejected() -> None:
    """Calls in which ATen would read beyond a tensor."""
    self, grad_output = torch.zeros(2, 3, 4, 4), torch.ones(2, 3, 2, 2)
    indices = torch.zeros(grad_output.shape, dtype=torch.int64)
    run = launch.fractional_max_pool2d_backward
    for changed in (
        (grad_output[:1], self, indices[:1]),
        (grad_output[:, :2], self, indices[:, :2]),
        (grad_output, self, indices[:1]),
        (grad_output[None], self[None], indices[None]),
    ):
        with pytest.raises(RuntimeError, match="gradOutput|grad_output|input tensor"):
            run(changed[0], changed[1], [2, 2], [2, 2], changed[2])
    with pytest.raises(IndexError):
        run(grad_output, self[0, 0], [2, 2], [2, 2], indices)


def test_an_input_without_elements_has_a_gradient_without() -> None:
    """As in ATen, whatever chose a position in it."""
    self, grad_output = torch.zeros(2, 3, 0, 4), torch.ones(2, 3, 1, 1)
    indices = torch.zeros(grad_output.shape, dtype=torch.int64)
    run = launch.fractional_max_pool2d_backward
    assert run(grad_output, self, [1, 1], [1, 1], indices).shape == self.shape
