"""Every substitute gives the same bits, whatever the order of blocks and threads."""

import sys
from unittest.mock import patch

import pytest

from detmode.verify.cases import Case, run_substituted
from detmode.verify.claims import check_bits, check_races, same_bits
from tests.shared import needs
from tests.shared.selection import (
    PROFILE,
    Group,
    cases,
    check_each,
    every_case,
    grouped,
    once,
    todays_forms,
)
from tests.shared.strategies import planned_with

GROUPS = grouped(cases())
# Of families some each day: both are about each kernel, which is compiled for the first.
ONCE = todays_forms(grouped(once(cases())))
RACED = GROUPS if PROFILE.thorough else ONCE
# The function of this name hides its module.
launching = sys.modules["detmode.cuda.launch"]


@needs.compiler
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_schedules_do_not_change_bits(group: Group) -> None:
    """Program order and shuffled schedules of the host runner give identical bytes."""
    check_each(group, lambda case: check_bits(case, "host", PROFILE.schedules_in(case.dtype)))


@needs.compiler
@pytest.mark.parametrize("group", RACED, ids=str)
def test_no_data_race(group: Group) -> None:
    """Barriers and fences order every two accesses to a byte of which one is a plain write."""
    check_each(group, check_races)


@needs.compiler
@pytest.mark.parametrize("group", ONCE, ids=str)
def test_few_threads_take_many_turns(group: Group) -> None:
    """A grid is capped: one warp, each thread of which takes several turns, gives the same bits.

    The samples are small. Launched as they are, hardly a loop over the grid runs twice.
    """

    def check(case: Case) -> None:
        expected = run_substituted(case.sample, case.dtype)
        with planned_with(patch.multiple(launching, MAX_GRID=1, BLOCK=32)):
            assert same_bits(run_substituted(case.sample, case.dtype), expected)

    check_each(group, check)


@pytest.mark.cuda
@pytest.mark.parametrize("case", every_case(), ids=str)
def test_repeats_do_not_change_bits(case: Case) -> None:
    """100 runs on a GPU, every second one on a loaded second stream, give identical bytes."""
    check_bits(case, "cuda", 100)
