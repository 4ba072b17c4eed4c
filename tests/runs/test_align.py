"""Aligning sequences: nothing is lost, what is the same meets, and as little as can be is left."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detmode.runs.align import Pair, align


class Read(list[int]):
    """Counts how often one of its items is read."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        self.reads += 1
        return super().__getitem__(place)


sequences = st.lists(st.integers(1, 4), max_size=30)


def by_kind(a: list[int], b: list[int], **effort: int) -> tuple[list[Pair], list[int]]:
    """Aligned by the kinds alone, as no two calls are the same; and from where on coarsely."""
    whole = list(range(-len(a), 0)), list(range(1, len(b) + 1))
    coarse_from: list[int] = []
    return list(align((a, b), whole, whole, coarse_from.append, **effort)), coarse_from


def fewest_left_over(a: list[int], b: list[int]) -> int:
    """By dynamic programming over all prefixes."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(above[j - 1] if x == y else 1 + min(above[j], row[j - 1]))
    return row[-1]


@given(sequences, sequences, st.none() | st.integers(0, 60))
def test_alignment_is_whole_and_shortest(a, b, most):
    """Every call of both runs appears once, in order, and pairs are alike.

    The fewest are left over, where the effort that is allowed was enough.
    """
    pairs, coarse_from = by_kind(a, b) if most is None else by_kind(a, b, most=most)
    assert [i for i, _ in pairs if i is not None] == list(range(len(a)))
    assert [j for _, j in pairs if j is not None] == list(range(len(b)))
    assert all(a[i] == b[j] for i, j in pairs if i is not None and j is not None)
    assert len(coarse_from) <= 1
    if not coarse_from:
        assert sum(i is None or j is None for i, j in pairs) == fewest_left_over(a, b)


def test_a_batch_tells_which_step_is_left_over():
    """Steps look alike; the one whose batch the other run has not is left over."""
    step = [1, 2, 3]
    kinds = step * 3, step * 4
    # The first call of each step loads its batch; the second run has another at the beginning.
    whole = [10, -1, -2, 20, -3, -4, 30, -5, -6], [5, 1, 2, 10, 3, 4, 20, 5, 6, 30, 7, 8]
    pairs = list(align(kinds, whole, whole))
    assert pairs[:4] == [(None, 0), (None, 1), (None, 2), (0, 3)]
    assert pairs[-1] == (8, 11)
    assert [i for i, _ in pairs if i is not None] == list(range(9))
    assert [j for _, j in pairs if j is not None] == list(range(12))


@pytest.mark.thorough
def test_runs_without_likeness():
    """Long runs that have nothing in common are all left over, and it does not take long."""
    pairs, _ = by_kind([1] * 2000, [2] * 2000)
    assert len(pairs) == 4000


@pytest.mark.thorough
def test_far_stretch():
    """A stretch that is longer than a shortest script is looked for is passed over."""
    common = [1, 2, 3, 4] * 50
    pairs, _ = by_kind(common, [9] * 2000 + common)
    assert sum(i is not None and j is not None for i, j in pairs) == len(common)


def test_loops_of_other_lengths_take_bounded_time():
    """Long runs whose loops depend on data take no more steps than are allowed.

    From where these are spent on the alignment is coarse, and says so.
    """
    choose = random.Random(0)
    a, b = (Read(choose.randrange(3) for _ in range(20_000)) for _ in range(2))
    pairs, coarse_from = by_kind(a, b, most=1 << 16)
    assert sum(i is not None for i, _ in pairs) == len(a)
    assert coarse_from
    # One search goes a little beyond.
    assert a.reads + b.reads < 1 << 19
