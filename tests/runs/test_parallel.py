"""Recordings of parallel training: two of the same program are the same, on every rank."""

from pathlib import Path

import pytest

from detmode import diff
from tests.shared import needs, selection
from tests.shared.processes import run_program

pytestmark = needs.distributed
WORLD = 4 if selection.PROFILE.thorough else 2
KINDS = ("ddp", "powersgd", "fsdp1", "hsdp1", "fsdp2", "hsdp2", "tp", "sp", "pp")
NAMES = tuple(f"{kind}{mode}" for kind in KINDS for mode in ("", "+mode"))
CHOSEN = selection.todays_forms(NAMES)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """The recordings of one world, which is started once for all that it records."""
    folder = tmp_path_factory.mktemp("parallel")
    program = Path(__file__).with_name("parallel.py")
    given = (folder, f"file://{folder}/rendezvous")
    run_program(program, [(*given, rank, WORLD, *CHOSEN) for rank in range(WORLD)], timeout=500)
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("name", CHOSEN)
def test_two_recordings_are_the_same(name, recordings):
    """Whatever new memory holds, when collectives end, and what DTensor has cached."""
    for rank in range(WORLD):
        runs = (recordings / name / run / f"rank{rank}" for run in ("first", "second"))
        comparison = diff(*runs)
        assert comparison.identical, f"rank {rank}: {comparison}"
        assert comparison.same > 300
