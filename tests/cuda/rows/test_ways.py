"""Sizes choose the way to add, multiply and assign rows, and the share of a thread."""

from functools import partial

import pytest
import torch

from detmode.cuda.rows.chosen_windows import Pooled
from detmode.cuda.rows.shapes import Rows
from detmode.cuda.rows.shares import MANY, PER_THREAD, Share, choose_share
from detmode.cuda.rows.strips import Strips
from detmode.cuda.rows.ways import Way, choose_assignment, choose_product, choose_sum

F32, F64, C128 = torch.float32, torch.float64, torch.complex128
MOST = 227 * 1024
"""Bytes of shared memory of a block on an H100."""
LONG = 2**31


@pytest.mark.parametrize(
    ("shape", "dtype", "way"),
    [
        # outer, rows, inner, size
        (Rows(1, 1, 1, 1), F32, Way.FEW),
        (Rows(1, 64, 1024, 5), F32, Way.FEW),
        (Rows(1, 64, 1025, 5), F32, Way.SORTED),
        (Rows(1, 1, 1 << 20, 5), F32, Way.FEW),
        (Rows(1, 65, 1024, 5), F32, Way.WIDE),
        (Rows(1, 65, 128, 5), F32, Way.WIDE),
        (Rows(1, 65, 127, 5), F32, Way.SORTED),
        (Rows(1, 65, 129, 5), F32, Way.SORTED),
        (Rows(1, 65, 64, 5), F64, Way.WIDE),
        (Rows(1, 65, 128, LONG - 1), F32, Way.WIDE),
        (Rows(1, 65, 128, LONG), F32, Way.SORTED),
        # The kernel of wide rows counts a row's bytes in 32 bits.
        (Rows(1, 65, 2**30 - 4, 5), F32, Way.WIDE),
        (Rows(1, 65, 2**30, 5), F32, Way.SORTED),
        (Rows(1, 65, 1, 1000), F32, Way.SORTED),
        (Rows(1, 2**17 - 1, 1, 5), F32, Way.BINS),
        (Rows(1, 2**17, 1, 5), F32, Way.IN_BLOCKS),
        (Rows(1, 2**19 - 1, 1, 2**18), F32, Way.SINGLY),
        (Rows(1, 2**19, 1, 2**18), F32, Way.TOGETHER),
        # Single elements, four for each destination, and below 2**24 with an initial value.
        (Rows(1, 65, 1, 16), F32, Way.BINS),
        (Rows(1, 65, 1, 17), F32, Way.SORTED),
        (Rows(1, 64, 1, 16), F32, Way.FEW),
        (Rows(1, 2**19, 1, 2**17), torch.bfloat16, Way.BINS),
        (Rows(1, 2**19, 1, 2**17, True), torch.float16, Way.BINS),
        (Rows(1, 2**24 - 2, 1, 10_000), F32, Way.BINS),
        (Rows(1, 2**24 - 1, 1, 10_000), F32, Way.TOGETHER),
        (Rows(1, 2**19, 1, 10_000), F64, Way.SORTED),
        (Rows(1, 2**19, 2, 100_000), F32, Way.TOGETHER),
        (Rows(2, 2**19, 1, 10_000), F32, Way.SORTED),
        # Cheaper sorted, while int32 has their positions.
        (Rows(1, LONG - 1, 1, 2), C128, Way.SORTED),
        (Rows(1, LONG, 1, 2), C128, Way.IN_BLOCKS),
        (Rows(1, LONG, 1, 3000), C128, Way.TOGETHER),
    ],
    ids=str,
)
def test_sums_of_rows(shape: Rows, dtype: torch.dtype, way: Way) -> None:
    """Few rows are one launch; others are sorted where fewer bytes move, or added as integers."""
    assert choose_sum(shape, dtype, aligned=True) is way


@pytest.mark.parametrize("unlike", [{"include_self": False}, {"mean": True}], ids=str)
def test_sums_without_bins(unlike: dict[str, bool]) -> None:
    """Bins do not say whether a destination has an addend, nor how many: other ways count them."""
    assert choose_sum(Rows(1, 2**19, 1, 10_000), F32, **unlike) is Way.TOGETHER


@pytest.mark.parametrize("unlike", [{"aligned": False}, {"mean": True}], ids=str)
def test_rows_that_are_not_read_as_wide_ones(unlike: dict[str, bool]) -> None:
    """Memory that is not aligned, and means, have the bits of wide rows without being read so."""
    assert choose_sum(Rows(1, 65, 128, 5), F32, **{"aligned": True, **unlike}) is Way.SORTED


@pytest.mark.parametrize(
    ("shape", "shared", "way"),
    [
        (Rows(4, 16, 1, 9), MOST, Way.FEW),
        (Rows(4, 17, 1, 9), MOST, Way.SORTED),
        (Rows(4096, 1, 1, 32_000), MOST, Way.FEW),
        (Rows(64, 300, 1, 900), MOST, Way.SORTED),
        (Rows(64, 1000, 1, 1000), MOST, Strips),
        (Rows(64, 1000, 1, 1000), 11, Way.SINGLY),
        (Rows(63, 1000, 1, 1000), MOST, Way.SINGLY),
        (Rows(64, 1000, 2, 1000), MOST, Way.SINGLY),
        (Rows(64, 1 << 17, 1, 6 * (MOST // 12)), MOST, Strips),
        (Rows(64, 1 << 17, 1, 6 * (MOST // 12) + 1), MOST, Way.TOGETHER),
    ],
    ids=str,
)
def test_sums_of_elements(shape: Rows, shared: int, way: object) -> None:
    """Planes of elements, each with an index, are added in shared memory if not too large."""
    chosen = choose_sum(shape, F32, by_row=False, shared=shared)
    assert way in (chosen, type(chosen))


@pytest.mark.parametrize(
    ("shape", "by_row", "way"),
    [
        (Rows(3, 64, 7, 9), True, Way.FEW),
        (Rows(3, 65, 7, 9), True, Way.SORTED),
        (Rows(1, 64, 1, 9), False, Way.FEW),
        (Rows(3, 64, 7, 9), False, Way.SORTED),
        (Rows(4096, 1, 1, 32_000), False, Way.FEW),
    ],
    ids=str,
)
def test_products(shape: Rows, by_row: bool, way: Way) -> None:
    """Rows are sorted, but few ones."""
    assert choose_product(shape, by_row=by_row) is way


@pytest.mark.parametrize(
    ("shape", "by_row", "way"),
    [
        (Rows(2, 1, 9, 5), True, Way.DIRECT),
        (Rows(1, 1, 1, 5), False, Way.DIRECT),
        (Rows(4096, 1, 1, 32_000), False, Way.DIRECT),
        (Rows(1, 2, 9, 5), True, Way.FEW),
        (Rows(1, 64, 1024, 5), True, Way.FEW),
        (Rows(1, 64, 1025, 5), True, Way.ELECTED),
        (Rows(1, 65, 1, 5), True, Way.ELECTED),
        (Rows(1, 2, 9, 5), False, Way.ELECTED),
        (Rows(64, 300, 1, 900), False, Strips),
        (Rows(64, 300, 1, 900), True, Way.ELECTED),
        (Rows(64, 300, 1, 16 * 300), False, Strips),
        (Rows(64, 300, 1, 16 * 300 + 1), False, Way.ELECTED),
        (Rows(1, 65, 1, 2**24), True, Way.ELECTED),
        (Rows(1, 65, 1, 2**24 + 1), True, Way.SORTED),
        (Rows(1, 2**21, 1, 2**25), True, Way.ELECTED),
        (Rows(1, 2**21, 1, 2**25 + 1), True, Way.SORTED),
        (Rows(1, LONG, 1, 2**40), True, Way.ELECTED),
    ],
    ids=str,
)
def test_assignments(shape: Rows, by_row: bool, way: object) -> None:
    """Destinations elect an owner unless they are very many; a row without a rival has no owner."""
    choose = partial(choose_assignment, shape, width=2, by_row=by_row)
    chosen = choose(shared=0 if by_row else MOST)
    assert way in (chosen, type(chosen))
    assert choose(unique=True, shared=MOST) is Way.DIRECT


@pytest.mark.parametrize(
    ("shape", "by_row", "way"),
    [
        (Rows(1, 64, 1, 2**30), True, Way.FEW),
        (Rows(1, 65, 1, 1), True, Way.IN_PLACE),
        (Rows(1, 65, 1, 2**40), True, Way.IN_PLACE),
        (Rows(1, 2, 9, 5), False, Way.IN_PLACE),
        (Rows(64, 300, 1, 16 * 300), False, Strips),
        (Rows(64, 300, 1, 16 * 300 + 1), False, Way.IN_PLACE),
        # Rows, of which each owner is by itself in the memory of the destinations.
        (Rows(1, 65, 2000, 65 * 16), True, Way.ELECTED),
        (Rows(1, 65, 2000, 65 * 16 + 1), True, Way.IN_PLACE),
        (Rows(3, 65, 1, 65 * 16), True, Way.ELECTED),
        (Rows(3, 65, 1, 2**25), True, Way.IN_PLACE),
        # As many as 32 bits can count.
        (Rows(1, LONG - 1, 1, 2**40), True, Way.IN_PLACE),
        (Rows(1, LONG, 1, 2**40), True, Way.ELECTED),
    ],
    ids=str,
)
def test_words_that_hold_a_position(shape: Rows, by_row: bool, way: object) -> None:
    """Words of four bytes and more are where their destination elects, and nothing is sorted."""
    for width in (4, 8, 16):
        chosen = choose_assignment(shape, width=width, by_row=by_row, shared=0 if by_row else MOST)
        assert way in (chosen, type(chosen))


@pytest.mark.parametrize(
    ("planes", "numel", "out_numel", "share"),
    [
        (PER_THREAD, MANY, 1, Share(PER_THREAD, "int32_t")),
        (PER_THREAD - 1, MANY, 1, Share(1, "int32_t")),
        (PER_THREAD, MANY - 1, 2**29, Share(1, "int32_t")),
        (PER_THREAD, 2**29 + 1, 1, Share(PER_THREAD, "int64_t")),
        (1, 1, 2**29 + 1, Share(1, "int64_t")),
    ],
)
def test_sizes_choose_a_share(planes: int, numel: int, out_numel: int, share: Share) -> None:
    """A thread serves several planes where elements are many, and counts as far as it must."""
    assert choose_share(planes, numel, out_numel) == share
    assert choose_share(planes, numel, out_numel, least=planes + 1).per_thread == 1


@pytest.mark.parametrize(
    ("planes", "sizes", "out_sizes", "few"),
    [
        (1024, (1, 16, 16), (1, 4, 4), True),
        (1024, (1, 16, 17), (1, 4, 4), True),
        (1024, (1, 16, 16), (1, 4, 5), False),
        (1023, (1, 16, 16), (1, 4, 4), False),
        (2, (1, 2**12, 2**12), (1, 4, 4), True),
    ],
)
@pytest.mark.parametrize("flat", [True, False])
def test_windows_that_choose_few_elements(
    planes: int, sizes: tuple[int, ...], out_sizes: tuple[int, ...], flat: bool, few: bool
) -> None:
    """A thread has a window of large images with few of them, in any layout."""
    assert Pooled((1, planes), sizes, out_sizes, flat).choose_few() is few
