"""Every substitute gives the same bits, whatever the order of blocks and threads."""

import sys

import pytest
import torch

from detmode import cuda
from detmode.verify.cases import Case, cases, run_substituted
from detmode.verify.claims import check_bits, check_races, same_bits

CASES = cases()
# The function of this name hides its module.
launching = sys.modules["detmode.cuda.launch"]
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


# One dtype of each sample, float32 where it has it.
ONCE = {
    (case.family, case.sample.op, case.sample.name): case
    for case in sorted(CASES, key=lambda case: case.dtype == torch.float32)
}.values()


@needs_compiler
@pytest.mark.parametrize("case", ONCE, ids=str)
def test_few_threads_take_many_turns(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid is capped: one warp, each thread of which takes several turns, gives the same bits.

    The samples are small. Launched as they are, hardly a loop over the grid runs twice.
    """
    expected = run_substituted(case.sample, case.dtype)
    monkeypatch.setattr(launching, "MAX_GRID", 1)
    monkeypatch.setattr(launching, "BLOCK", 32)
    assert same_bits(run_substituted(case.sample, case.dtype), expected)


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES, ids=str)
def test_repeats_do_not_change_bits(case: Case) -> None:
    """100 runs on a GPU, every second one on a loaded second stream, give identical bytes."""
    check_bits(case, "cuda", 100)
