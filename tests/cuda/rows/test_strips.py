"""Planes are cut for blocks that collect their elements in shared memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detmode.cuda.rows.strips import strips_of

MOST = 227 * 1024
"""Bytes of shared memory of a block on an H100, which has 1 KiB more for each multiprocessor."""


@given(
    planes=st.integers(1, 2**20),
    size=st.integers(1, 2**17),
    reads=st.integers(0, 2**10),
    each=st.sampled_from([4, 12, 20, 40, 44]),
    most=st.sampled_from([48 * 1024, 99 * 1024, MOST]),
)
def test_strips_cover_planes_and_fit(
    planes: int, size: int, reads: int, each: int, most: int
) -> None:
    """Strips, as few as fit, cover a plane; the blocks of a multiprocessor fit it together."""
    cut = strips_of(planes, size, reads, each, most, 6)
    fewest = -(-size * each // most)
    if cut is None:
        assert fewest > 5 or planes * fewest < 64 or size + reads < 256
        return
    assert (cut.strips - 1) * cut.strip < size <= cut.strips * cut.strip
    assert fewest <= cut.strips <= fewest + 1
    assert cut.strip * each <= cut.shared < cut.strip * each + 4096
    assert cut.shared <= most
    assert (1024 // cut.threads) * (cut.shared + 1024) <= most + 1024
    assert cut.blocks == min(planes * cut.strips, 2**16)


@pytest.mark.parametrize(
    ("planes", "threads"), [(63, None), (64, 1024), (255, 1024), (256, 512), (512, 256)]
)
def test_few_blocks_have_more_threads(planes: int, threads: int | None) -> None:
    """A small plane's block takes all threads of a multiprocessor until there are blocks enough."""
    cut = strips_of(planes, 100, 0, 12, MOST, 6)
    assert (cut and cut.threads) == threads


@pytest.mark.parametrize(
    ("planes", "size", "reads", "most"),
    [(100, 0, 2, MOST), (100, 2, 2, 11), (4097, 100, 155, MOST)],
    ids=["no destinations", "no room", "many with little to do"],
)
def test_planes_without_strips(planes: int, size: int, reads: int, most: int) -> None:
    """They are left to memory; with a plane less, or more to do, they have strips."""
    assert strips_of(planes, size, reads, 12, most, 6) is None
    assert strips_of(4096, 100, 155, 12, MOST, 6)
    assert strips_of(4097, 100, 156, 12, MOST, 6)
