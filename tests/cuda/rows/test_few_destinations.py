"""Sums at few destinations, which blocks add for themselves first."""

import sys
from unittest.mock import patch

import pytest
import torch

from detmode.cuda import host
from detmode.cuda.rows import few_destinations
from detmode.cuda.rows.few_destinations import blocks_of
from detmode.cuda.rows.shapes import Rows
from detmode.cuda.rows.sums import add_rows
from detmode.cuda.rows.ways import Way, choose_sum
from detmode.rules.scatter.launch import scatter
from detmode.table.conditions import COMPLEX, FLOATING
from detmode.table.samples import Maker
from tests.shared import needs
from tests.shared.selection import todays_dtypes
from tests.shared.strategies import in_schedules, same_bits

launching = sys.modules["detmode.cuda.launch"]  # the function of this name hides its module
F16, F32, F64, C128 = torch.float16, torch.float32, torch.float64, torch.complex128
SMALL = {"THREADS": 64, "LEAST_SHARE": 100, "SHARES": 1, "FEWEST_BLOCKS": 1}
"""Sizes with which few elements have several blocks, each with several turns and a part of one."""


@pytest.mark.thorough
@needs.compiler
@pytest.mark.parametrize("dtype", todays_dtypes(FLOATING + COMPLEX), ids=str)
@pytest.mark.parametrize(
    ("shape", "special"),
    [(Rows(1, 799, 1, 7), False), (Rows(2, 133, 3, 5, wraps=True), True)],
    ids=["finite", "special"],
)
def test_bits_are_those_of_sums_in_memory(shape: Rows, dtype: torch.dtype, special: bool) -> None:
    """In any schedule, with factors, without initial values, for means; NaNs and infinities too."""
    maker = Maker(dtype, seed=shape.rows)
    index = maker.integers(0, shape.size - 1, shape.rows)
    if shape.wraps:
        index -= shape.size * (torch.arange(shape.rows) % 2)
    out, source = maker.normal(shape.destinations), maker.normal(shape.addends)
    if special:
        # A NaN, an infinity, two that are opposed, and -0.0, each at its own destinations.
        for place, value in enumerate((torch.nan, torch.inf, torch.inf, -torch.inf, -0.0)):
            source[place * shape.inner :: 97 * shape.inner] = value
    options = ({}, {"alpha": 0.3, "include_self": False}, {"mean": True})
    with patch.multiple(few_destinations, **SMALL):
        for how in options:
            blocks = blocks_of(shape, dtype, mean=how.get("mean", False))
            assert blocks == shape.addends // 100

            def add(way: Way, how: dict[str, object] = how) -> torch.Tensor:
                result = out.clone()
                add_rows(result, index, source, shape, way=way, **how)
                return result

            in_memory = add(Way.SINGLY)
            assert same_bits(in_schedules(lambda add=add: add(Way.IN_BLOCKS), 3), in_memory)
            if dtype in (F32, C128) and how is options[-1]:
                with host.check_races():
                    add(Way.IN_BLOCKS)


@pytest.mark.parametrize(
    ("shape", "dtype", "mean", "blocks"),
    [
        (Rows(1, 1 << 21, 1, 150), F32, False, 256),
        (Rows(1, (1 << 17) - 1, 1, 150), F32, False, 0),
        (Rows(1, 1 << 17, 1, 150), F32, False, 32),
        (Rows(1, 1 << 17, 1, 513), F32, False, 0),
        (Rows(1, 1 << 24, 1, 8192), F32, False, 256),
        (Rows(1, 1 << 24, 1, 8193), F32, False, 0),
        (Rows(1, 1 << 24, 1, 8192), F32, True, 0),
        (Rows(1, 1 << 24, 1, 5461), F32, True, 256),
        (Rows(1, 1 << 24, 1, 8192), F16, False, 256),
        (Rows(1, 1 << 24, 1, 4097), F64, False, 0),
        (Rows(4, 1 << 22, 1, 512), C128, False, 256),
        (Rows(1, 1 << 24, 1, 0), F32, False, 0),
    ],
    ids=str,
)
def test_sizes_choose_the_blocks(shape: Rows, dtype: torch.dtype, mean: bool, blocks: int) -> None:
    """Few destinations that every GPU's blocks can hold, and elements enough for blocks."""
    assert blocks_of(shape, dtype, mean=mean) == blocks
    if shape.size and dtype is F32:
        chosen = choose_sum(shape, dtype, mean=mean, by_row=shape.outer == 1)
        assert (chosen is Way.IN_BLOCKS) is (blocks > 0)


@needs.compiler
def test_many_elements_at_few_destinations() -> None:
    """A call of the size at which blocks are chosen: exact but for one rounding."""
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(150, (1 << 17,), generator=generator)
    source = torch.randn(1 << 17, generator=generator)
    with patch.object(launching, "_start", wraps=launching._start) as start:
        found = scatter(torch.zeros(150), 0, index, source, reduce="add")
    names = [call.args[0][1] for call in start.call_args_list]
    assert names == [
        "few_destinations_observe<float>",
        "index_add_admit_self<float>",
        "few_destinations_add<float>",
        "index_add_finish<float>",
    ]
    expected = torch.zeros(150, dtype=F64).index_add(0, index, source.double())
    assert torch.equal(found, expected.float())
