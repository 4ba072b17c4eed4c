"""Programs of several gloo ranks, and what each of them writes."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.shared import ROOT

FORKED = Path(__file__).with_name("forked.py")


def run_program(program: Path, arguments: Sequence[Sequence[object]], *, timeout: float) -> None:
    """Run a program in a process for each rank, and check that all of them end well.

    The processes are forked from one that has imported what the program imports.

    Args:
        program: a Python file.
        arguments: for each rank, what the program gets; ``RANK`` in its environment is the rank.
        timeout: seconds for which they are waited for.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    given = json.dumps([list(map(str, each)) for each in arguments])
    process = subprocess.Popen(
        [sys.executable, FORKED, program, given],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=timeout)
        assert process.returncode == 0, said[-4000:]
    finally:
        # All ranks, should one of them wait for another for ever.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def launched(ranks: int) -> dict[str, str]:
    """Return the variables that a launcher sets for all ranks, with a port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}


def run_ranks(program: Path, ranks: int, folder: Path) -> dict[str, list[Any]]:
    """Run a program in so many processes; return what each has written, by key.

    Args:
        program: gets its rank and the folder, and writes ``rank0.json`` and so on there.
        ranks: the number of processes.
        folder: an empty folder.
    """
    run_program(program, [(rank, folder) for rank in range(ranks)], timeout=200)
    of_ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    return {name: [each[name] for each in of_ranks] for name in of_ranks[0]}
