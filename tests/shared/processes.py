"""Programs in processes that are forked from one that has imported PyTorch, and gloo ranks."""

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.shared import ROOT

FORKED = Path(__file__).with_name("forked.py")


@functools.cache
def _forking() -> subprocess.Popen[str]:
    """Return the process that forks the programs of this one, which ends with it."""
    process = subprocess.Popen(
        [sys.executable, FORKED],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.communicate)
    return process


def run_forked(
    program: str,
    arguments: Sequence[Sequence[object]],
    folder: Path,
    *,
    timeout: float,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run a program without the time that importing PyTorch takes, in a process for each rank.

    Args:
        program: a Python file, ``-c`` or ``-m``.
        arguments: for each rank, what the program gets; first the text for ``-c``, the module for
            ``-m``.
        folder: the one to run in.
        timeout: seconds after which all of its processes are killed.
        environment: variables to add.
    """
    forking = _forking()
    assert forking.stdin is not None
    assert forking.stdout is not None
    with tempfile.TemporaryDirectory() as place:
        output = [Path(place) / name for name in ("stdout", "stderr")]
        for path in output:
            path.touch()
        asked = {
            "program": program,
            "arguments": [list(map(str, each)) for each in arguments],
            "environment": {**os.environ, "PYTHONPATH": str(ROOT), **environment},
            "folder": str(folder),
            "output": list(map(str, output)),
        }
        print(json.dumps(asked), file=forking.stdin, flush=True)
        process = int(forking.stdout.readline())
        timer = threading.Timer(timeout, os.killpg, (process, signal.SIGKILL))
        timer.start()
        code = int(forking.stdout.readline())
        timer.cancel()
        timer.join()
        # All ranks, should one of them wait for another for ever.
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        texts = (path.read_text(errors="replace") for path in output)
        return subprocess.CompletedProcess(program, code, *texts)


def run_program(program: Path, arguments: Sequence[Sequence[object]], *, timeout: float) -> None:
    """Run a program in a process for each rank, and check that all of them end well.

    Args:
        program: a Python file.
        arguments: for each rank, what the program gets; ``RANK`` in its environment is the rank.
        timeout: seconds for which they are waited for.
    """
    variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ended = run_forked(str(program), arguments, Path.cwd(), timeout=timeout, **variables)
    assert ended.returncode == 0, ended.stderr[-4000:]


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
