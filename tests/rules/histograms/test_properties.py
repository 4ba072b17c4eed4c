"""histc and bincount with weights on the host runner, over ranges, bins, layouts and dtypes."""

import math
from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from detmode import DeterministicMode
from detmode.rules.histograms import launch
from detmode.table.conditions import INTEGRAL
from detmode.table.samples import Maker
from tests.shared import needs
from tests.shared.exact_sums import assert_exact
from tests.shared.strategies import (
    LAYOUTS,
    SEEDS,
    SINGLE_OR_DOUBLE,
    in_schedules,
    same_bits,
    tensors,
)

pytestmark = needs.compiler

shapes = st.lists(st.one_of(st.integers(0, 5), st.sampled_from([1, 63, 300])), max_size=2)


def counts_of(values: Tensor, bins: int, low: float, high: float) -> Tensor:
    """Count the elements in each bin by ATen's formula, rounded in the elements' dtype."""
    begin, end, count = torch.tensor([low, high, bins], dtype=values.dtype)
    inside = values[(values >= begin) & (values <= end)]
    place = (inside - begin) * count / (end - begin)
    # The quotient of infinities is in the first bin, `high` in the last.
    place = torch.where(place.isnan(), 0, place).clamp(max=count)
    return torch.bincount(place.long().clamp(max=bins - 1), minlength=bins)


@given(
    data=st.data(),
    dtype=SINGLE_OR_DOUBLE,
    shape=shapes,
    bins=st.one_of(st.integers(1, 12), st.sampled_from([63, 100, 4096, 12_289])),
    seed=SEEDS,
    # Where the bins of a block are kept.
    fits=st.sampled_from([launch.SHARED_BINS, 4]),
)
def test_histc(
    data: st.DataObject, dtype: torch.dtype, shape: Sequence[int], bins: int, seed: int, fits: int
) -> None:
    """Every count is exact, for the bins of ATen's formula, in any schedule."""
    wide = st.floats(width=32, allow_nan=False, allow_infinity=False)
    low, high = sorted((data.draw(wide), data.draw(wide)))
    if data.draw(st.booleans()):
        low, high = sorted((data.draw(st.integers(-9, 9)), data.draw(st.integers(-9, 9))))
    self = data.draw(tensors(shape, dtype))
    finite = self.isfinite()
    if low == high and not finite.all():
        self = torch.where(finite, self, 1.0)
    begin, end = low, high
    if low == high and self.numel():
        begin, end = self.min().item(), self.max().item()
    if begin == end:
        begin, end = begin - 1, end + 1
        assume(abs(begin) < 2**24)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "SHARED_BINS", fits)
        got = in_schedules(lambda: launch.histc(self, bins, low, high), seed)
    assert (got.dtype, got.shape) == (dtype, (bins,))
    assert torch.equal(got, counts_of(self, bins, begin, end).to(dtype))


@pytest.mark.parametrize(
    ("n", "bins", "blocks", "in_shared"),
    [
        (0, 1, 0, True),
        (4096, 1, 1, True),
        (4097, 1, 2, True),
        (2**30, 1, 8192, True),
        # Each block hands over all bins, so it counts as many elements.
        (4 * 12_288, 12_288, 4, True),
        (4 * 12_288, 12_289, 12, False),
    ],
)
def test_the_way_to_count(n: int, bins: int, blocks: int, in_shared: bool) -> None:
    """Sizes choose the blocks, and whether their bins are in shared memory."""
    assert launch.choose(n, bins) == (blocks, in_shared)


@given(data=st.data(), dtype=SINGLE_OR_DOUBLE, bins=st.integers(1, 200), seed=SEEDS)
def test_histc_is_atens(data: st.DataObject, dtype: torch.dtype, bins: int, seed: int) -> None:
    """Through the user's own call; ATen's CPU kernel differs by what lies close to an edge."""
    self = Maker(dtype, seed=seed).normal(data.draw(st.integers(0, 2000)))
    low = data.draw(st.sampled_from([0.0, -4.0, -0.3]))
    high = data.draw(st.sampled_from([0.0, 4.0, 0.7]))
    low, high = min(low, high), max(low, high)
    out = torch.empty(0, dtype=dtype)
    with DeterministicMode(simulate="cuda") as mode:
        got = torch.histc(self, bins, low, high)
        torch.histc(self, bins, low, high, out=out)
    assert [record.action for record in mode.records] == ["substitute"] * 2
    assert same_bits(got, out)
    wanted = torch.histc(self, bins, low, high)
    assert got.sum() == wanted.sum()
    # Every element that the two put into different bins changes two of them by one.
    assert (got - wanted).abs().sum() <= 2 + 2e-3 * self.numel()


@given(
    data=st.data(),
    dtype=st.sampled_from(INTEGRAL),
    weights_dtype=SINGLE_OR_DOUBLE,
    n=st.one_of(st.integers(1, 9), st.sampled_from([64, 500])),
    minlength=st.one_of(st.just(0), st.integers(0, 300)),
    seed=SEEDS,
)
def test_bincount(
    data: st.DataObject,
    dtype: torch.dtype,
    weights_dtype: torch.dtype,
    n: int,
    minlength: int,
    seed: int,
) -> None:
    """Sums are exact but for one rounding, in any schedule; empty bins are zero."""
    largest = data.draw(st.one_of(st.integers(0, 9), st.integers(0, 127)))
    self = Maker(dtype, seed=seed).integers(0, largest + 1, n, dtype=dtype)
    self, weights = data.draw(LAYOUTS)(self), data.draw(tensors([n], weights_dtype))
    got = in_schedules(lambda: launch.bincount(self, weights, minlength), seed)
    like = torch.bincount(self, weights, minlength)
    assert (got.dtype, got.shape) == (like.dtype, like.shape)
    assert_exact(got, torch.zeros_like(got), self.long(), weights)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.bool, torch.int8])
def test_weights_of_another_dtype_become_float64(dtype: torch.dtype) -> None:
    """Every such value is a float64, and so is the sum."""
    weights = Maker(dtype).normal(400)
    self = Maker(torch.int64).integers(0, 3, 400)
    got = launch.bincount(self, weights)
    for bin in range(3):
        exact = sum(map(Fraction, weights[self == bin].double().tolist()))
        assert got[bin].item() == float(exact)


def test_counts_beyond_the_precision_of_float32() -> None:
    """They are rounded once; a float that is counted in stops at 2**24."""
    counts = torch.tensor([2**24 + 2, 2**25 + 2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "_count", lambda *_: counts)
        assert launch.histc(torch.ones(1), 2, 0, 1).tolist() == [2**24 + 2, 2**25]


def test_elements_that_swallow_the_difference() -> None:
    """A range of equal elements so large that one below and one above are the same."""
    with pytest.raises(RuntimeError, match="max must be larger than min"):
        launch.histc(torch.tensor([1e30, 1e30]))


@pytest.mark.parametrize(
    ("values", "low", "high", "text"),
    [
        ([1.0], -math.inf, 1, r"range of \[-inf, 1\] is not finite"),
        ([1.0], 0, math.nan, r"range of \[0, nan\] is not finite"),
        ([1.0, math.inf], 0, 0, r"range of \[1, inf\] is not finite"),
        ([1.0], 2, 1, "max must be larger than min"),
        ([1.0], -1e39, 0, "without overflow"),
    ],
)
def test_impossible_ranges(values: list[float], low: float, high: float, text: str) -> None:
    """ATen's texts."""
    with pytest.raises(RuntimeError, match=text):
        launch.histc(torch.tensor(values), 3, low, high)
