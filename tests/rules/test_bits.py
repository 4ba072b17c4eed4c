"""Every substitute gives the same bits, whatever the order of blocks and threads."""

import pytest

from detmode import cuda
from detmode.verify.cases import Case, cases
from detmode.verify.claims import check_bits, check_races

CASES = cases()
needs_compiler = pytest.mark.skipif(
    cuda.unavailable("cpu") is not None, reason="the host runner needs a C++ compiler"
)


@needs_compiler
@pytest.mark.parametrize("case", CASES, ids=str)
def test_schedules_do_not_change_bits(case: Case, schedules: int) -> None:
    """Program order and shuffled schedules of the host runner give identical bytes."""
    check_bits(case, "host", schedules)


@needs_compiler
@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_data_race(case: Case) -> None:
    """Barriers and fences order every two accesses to a byte of which one is a plain write."""
    check_races(case)


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES, ids=str)
def test_repeats_do_not_change_bits(case: Case) -> None:
    """100 runs on a GPU, every second one on a loaded second stream, give identical bytes."""
    check_bits(case, "cuda", 100)
