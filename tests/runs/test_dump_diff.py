"""Two dumps differ as is reported: in elements, places, ULPs, and at most by so much."""

import math
import struct
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from detmode.runs import dump_file
from detmode.runs.dump_diff import ArrayDifference, compare_dumps
from tests.shared.traces import dumped


def compared(tmp_path: Path, one: Tensor, other: Tensor) -> ArrayDifference | None:
    """Compare dumps of two tensors."""
    dumps = [
        dumped(tmp_path / str(uuid4()), "aten::clone@0", tensor.clone) for tensor in (one, other)
    ]
    found = compare_dumps(*dumps)
    assert found.missing == ()
    assert [each.name for each in found.differing] in ([], ["input 0", "output 0"])
    return found.differing[0] if found.differing else None


def ordered(dtype: torch.dtype) -> dict[int, int]:
    """Of each 16-bit pattern its place among all numbers of its sign; none if not finite."""
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    numbers = every.view(dtype).double()
    places = {}
    for sign in (False, True):
        mine = (torch.signbit(numbers) == sign) & numbers.isfinite()
        inwards = every[mine][numbers[mine].abs().argsort()].tolist()
        places.update(zip(inwards, range(len(inwards))))
    return places


PLACES = {dtype: ordered(dtype) for dtype in (torch.float16, torch.bfloat16)}
patterns = st.integers(-(1 << 15), (1 << 15) - 1)
nearby = st.tuples(patterns, st.integers(-40, 40)).map(
    lambda pair: (pair[0], max(-(1 << 15), min((1 << 15) - 1, sum(pair))))
)


def row_of(distance: int) -> str:
    if distance <= 2:
        return str(distance)
    high = 1 << math.ceil(math.log2(distance))
    return f"{high // 2 + 1}-{high}"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pairs=st.lists(st.one_of(nearby, st.tuples(patterns, patterns)), min_size=1, max_size=30),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
)
@example(pairs=[(0, -(1 << 15)), (0, 1), (1, 4), (1, 5), (1, 6), (1, 10)], dtype=torch.float16)
def test_histogram_counts_the_floats_between(pairs, dtype, tmp_path):
    """Against the places of both numbers in the sorted list of all 16-bit floats."""
    one, other = (
        torch.tensor(side, dtype=torch.int64).to(torch.int16).view(dtype) for side in zip(*pairs)
    )
    expected = Counter()
    places = PLACES[dtype]
    for a, b in pairs:
        if a == b:
            expected["0"] += 1
        elif a not in places or b not in places:
            expected["NaN or Inf"] += 1
        elif (a < 0) != (b < 0):
            expected["other sign"] += 1
        else:
            expected[row_of(abs(places[a] - places[b]))] += 1
    found = compared(tmp_path, one, other)
    assert dict(found.ulps if found else [("0", len(pairs))]) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_histogram_of_wide_floats(dtype, tmp_path):
    """Steps of nextafter are counted, over powers of two and up to the largest number."""
    one = torch.tensor([1.0, -1.0, 0.0, 1e-30, 0.0], dtype=dtype)
    other = one.clone()
    largest = torch.finfo(dtype).max
    for _ in range(3):
        other = torch.nextafter(other, torch.tensor([0, 0, 1, 1, 0], dtype=dtype))
    other[4] = largest
    found = compared(tmp_path, one, other)
    size = {torch.float32: "i", torch.float64: "q"}[dtype]
    (steps,) = struct.unpack(f"={size}", struct.pack(f"={'f' if size == 'i' else 'd'}", largest))
    power = (steps - 1).bit_length()
    assert found.ulps == (("3-4", 4), (f"{(1 << power - 1) + 1}-{1 << power}", 1))


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.int8, torch.complex64, torch.float8_e5m2],
    ids=str,
)
@pytest.mark.parametrize("chunk", [5, 1 << 18])
def test_where_and_how_far(dtype, chunk, tmp_path, monkeypatch):
    """Count, positions, region and largest difference, whatever chunks they lie in."""
    monkeypatch.setattr(dump_file, "CHUNK", chunk)
    one, change = torch.full((4, 3, 5), 8.0), torch.zeros(4, 3, 5)
    places = [(1, 0, 4), (1, 2, 1), (3, 1, 2)]
    for place, by in zip(places, (-2.0, 4.0, 8.0)):
        change[place] = by
    found = compared(tmp_path, one.to(dtype), (one + change).to(dtype))
    assert (found.elements, found.size) == (3, 60)
    assert (found.first, found.last) == (places[0], places[2])
    assert found.region == ((1, 3), (0, 2), (1, 4))
    assert found.largest == 8
    assert sum(count for _, count in found.ulps) == {
        torch.float32: 60, torch.bfloat16: 60, torch.complex64: 120
    }.get(dtype, 0)  # fmt: skip
    assert "[1:4, 0:3, 1:5]" in str(found)


@pytest.mark.parametrize(
    ("one", "other", "largest"),
    [
        (torch.tensor([-(2**63)]), torch.tensor([2**63 - 1]), 2**64 - 1),
        (torch.tensor([2**53 + 1]), torch.tensor([2**53]), 1),
        (torch.tensor([200], dtype=torch.uint8), torch.tensor([3], dtype=torch.uint8), 197),
        (torch.tensor([True]), torch.tensor([False]), 1.0),
        (torch.tensor([0.0]), torch.tensor([-0.0]), 0.0),
        (torch.tensor([math.nan, 1.0]), torch.tensor([1.0, 3.0]), 2.0),
        (torch.tensor([math.inf]), torch.tensor([1.0]), None),
        (torch.tensor(2.0), torch.tensor(3.0), 1.0),
    ],
)
def test_largest_difference(one, other, largest, tmp_path):
    """Exact for integers of 64 bits, and of the finite elements."""
    found = compared(tmp_path, one, other)
    assert (found.largest, type(found.largest)) == (largest, type(largest))


def test_what_cannot_be_compared(tmp_path):
    """Tensors of other shapes or dtypes are named; so are parts that are the same."""
    found = compared(tmp_path, torch.ones(3), torch.ones(4))
    assert found.elements is None
    assert "float32[3] strides [1] cpu and float32[4] strides [1] cpu" in str(found)
    sparse = [
        dumped(tmp_path / str(scale), "aten::clone@0", (torch.eye(2) * scale).to_sparse().clone)
        for scale in (1, 2)
    ]
    parted = compare_dumps(*sparse)
    assert parted.same == ("input 0 indices", "output 0 indices")
    assert [each.name for each in parted.differing] == ["input 0 values", "output 0 values"]
