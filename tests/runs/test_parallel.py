"""Recordings of parallel training: two of the same program are the same, on every rank."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import selection
from torch import distributed

import detmode
from detmode import diff

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="this PyTorch is built without torch.distributed"
)
WORLD = 4
KINDS = ("ddp", "powersgd", "fsdp1", "hsdp1", "fsdp2", "hsdp2", "tp", "sp", "pp")
NAMES = tuple(f"{kind}{mode}" for kind in KINDS for mode in ("", "+mode"))
CHOSEN = NAMES if selection.PROFILE.thorough else ("powersgd", "fsdp1", "fsdp2", "tp+mode", "pp")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recordings of one world, which is started once for all that it records."""
    folder = tmp_path_factory.mktemp("parallel")
    program = Path(__file__).with_name("parallel.py")
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(detmode.__file__).parent.parent),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, program, folder, f"file://{folder}/rendezvous", str(rank), str(WORLD)]
            + list(CHOSEN),
            env={**environment, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        for process in processes:
            _, said = process.communicate(timeout=500)
            assert process.returncode == 0, said[-4000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return folder


@pytest.mark.parametrize("name", CHOSEN)
def test_two_recordings_are_the_same(name: str, recordings: Path) -> None:
    """Whatever new memory holds, when collectives end, and what DTensor has cached."""
    for rank in range(WORLD):
        runs = (recordings / name / run / f"rank{rank}" for run in ("first", "second"))
        comparison = diff(*runs)
        assert comparison.identical, f"rank {rank}: {comparison}"
        assert comparison.same > 300
