"""Programs of several gloo ranks, and what each of them writes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import detmode


def run_ranks(program: Path, ranks: int, folder: Path) -> dict[str, list[Any]]:
    """Run a program in so many processes; return what each has written, by key.

    Args:
        program: gets its rank and the folder, and writes ``rank0.json`` and so on there.
        ranks: the number of processes.
        folder: an empty folder.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(detmode.__file__).parent.parent),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        for process in processes:
            _, said = process.communicate(timeout=200)
            assert process.returncode == 0, said
    finally:
        for process in processes:
            process.kill()
            process.wait()
    of_ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    return {name: [each[name] for each in of_ranks] for name in of_ranks[0]}
