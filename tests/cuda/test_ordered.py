"""ordered.cuh: keys in the order of the values, and maxima and minima by integer atomics."""

import math

import pytest
import torch

from detmode.cuda import ctype, empty, launch
from tests.shared.cuda_sources import FLOATING, INTEGRAL, REDUCTIONS, pattern

WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def extrema(
    output: torch.Tensor, index: torch.Tensor, values: torch.Tensor, largest: bool
) -> torch.Tensor:
    """``output``, with the extremum of the values of each destination that has any."""
    name, n = ctype(values.dtype), output.numel()
    key = torch.int64 if values.itemsize == 8 else torch.int32
    keys = torch.full((n,), torch.iinfo(key).min, dtype=key)
    result, count = output.clone(), values.numel()
    launch(
        REDUCTIONS, f"extremum_observe<{name}>", count,
        index=index, values=values, keys=keys, n=count, largest=largest,
    )  # fmt: skip
    launch(
        REDUCTIONS, f"extremum_finish<{name}>", n, keys=keys, output=result, n=n, largest=largest
    )
    return result


def ascending(dtype: torch.dtype) -> torch.Tensor:
    """Values of the dtype in their order; of 16-bit dtypes all, but for NaNs."""
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        chosen = {limits.min + 1, limits.min + 2, 0, 1, 2, limits.max - 2, limits.max - 1}
        if dtype.is_signed:
            chosen |= {-2, -1}
        return torch.tensor(sorted(chosen), dtype=dtype)
    if dtype.itemsize == 2:
        every = torch.arange(2**15).to(torch.int16).view(dtype)
        positive = every[~every.isnan()]
    else:
        limit = torch.finfo(dtype)
        least = limit.smallest_normal * limit.eps
        chosen = [0, least, 2 * least, limit.smallest_normal, 1, 1 + limit.eps, limit.max, math.inf]
        positive = torch.tensor(chosen, dtype=dtype)
    return torch.cat([-positive.flip(0), positive])


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", FLOATING + INTEGRAL, ids=str)
def test_order_is_that_of_the_values(dtype: torch.dtype, largest: bool) -> None:
    """Of two neighbours in the dtype's order the right one stays, -0.0 below 0.0, to the bit."""
    values = ascending(dtype)
    pairs = values.unfold(0, 2, 1).contiguous()
    n = len(pairs)
    index = torch.arange(n).repeat_interleave(2)
    expected = pairs[:, 1 if largest else 0].contiguous()
    for order in (pairs, pairs.flip(1)):
        got = extrema(torch.zeros(n, dtype=dtype), index, order.reshape(-1).contiguous(), largest)
        assert pattern(got) == pattern(expected)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_nan_wins(dtype: torch.dtype, largest: bool) -> None:
    """Every NaN, of either sign, is beyond the infinities for maxima and minima, as one pattern."""
    word = WORDS[dtype.itemsize]
    nans = torch.tensor([math.nan], dtype=dtype).view(word)
    ones = torch.tensor([-1], dtype=word)
    nans = torch.cat([nans, nans + 1, nans | torch.iinfo(word).min, ones]).view(dtype)
    assert nans.isnan().all()
    others = torch.tensor([math.inf, -math.inf, 0.0, 1.0], dtype=dtype)
    index = torch.arange(4).repeat(2)
    for values in (torch.cat([nans, others]), torch.cat([others, nans])):
        got = extrema(torch.zeros(4, dtype=dtype), index, values, largest)
        assert got.isnan().all()
        assert got.view(word).unique().numel() == 1


def test_all_of_int64_has_keys() -> None:
    """The value whose key says that nothing was observed leaves the destination as it was."""
    lowest = torch.iinfo(torch.int64).min
    values = torch.tensor([lowest, lowest, lowest + 1])
    got = extrema(torch.tensor([5, 5]), torch.tensor([0, 1, 1]), values, True)
    assert got.tolist() == [5, lowest + 1]


def every_kind_of(dtype: torch.dtype) -> torch.Tensor:
    """All 8 and 16-bit values; of wider dtypes random bits, and the ends of each range."""
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    if dtype.itemsize <= 2:
        end = 2 ** (8 * dtype.itemsize - 1)
        return torch.arange(-end, end).to(words).view(dtype)
    ends = torch.iinfo(words)
    generator = torch.Generator().manual_seed(0)
    anything = torch.randint(ends.min, ends.max, (4000,), dtype=words, generator=generator)
    edges = torch.tensor([ends.min, ends.min + 1, -1, 0, 1, ends.max], dtype=words)
    values = torch.cat([anything, edges]).view(dtype)
    if dtype.is_floating_point:
        special = [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan")]
        values = torch.cat([values, torch.tensor(special, dtype=dtype)])
    return values


@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGRAL], ids=str)
def test_radix_keys(dtype: torch.dtype) -> None:
    """Keys are in the order of the values, NaN last and -0.0 before 0.0, and give them back."""
    values = every_kind_of(dtype)
    n = values.numel()
    keys, merged = (empty((n,), torch.int64, "cpu") for _ in range(2))
    back, nans = empty((n,), dtype, "cpu"), empty((n,), torch.bool, "cpu")
    launch(
        REDUCTIONS, f"radix_keys<{ctype(dtype)}>", n,
        input=values, keys=keys, back=back, nans=nans, merged=merged, n=n,
    )  # fmt: skip
    assert torch.equal(nans, values.isnan())
    assert back[nans].isnan().all()
    assert pattern(back[~nans]) == pattern(values[~nans])
    assert keys[nans].unique().numel() <= 1
    order = keys.argsort(stable=True)
    below, above = values[order][:-1], values[order][1:]
    assert ((below <= above) | above.isnan()).all()
    same = keys[order][:-1] == keys[order][1:]
    signs = (below == 0) & (above == 0) & ~same
    assert torch.equal(same | signs, (below == above) | (below.isnan() & above.isnan()))
    if dtype.is_floating_point:
        assert (below[signs].signbit() & ~above[signs].signbit()).all()
        zero = keys[(values == 0) & ~values.signbit()][0]
        assert (merged[values == 0] == zero).all()
    assert torch.equal(merged[values != 0], keys[values != 0])
