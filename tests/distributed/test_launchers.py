"""Programs of several ranks, started by every launcher: all run under the mode, with one report."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detmode.cli.commands.record import _path_of_rank
from detmode.cli.launchers import under_detmode
from detmode.cli.locks import ENVIRONMENT
from tests.shared import ROOT, needs
from tests.shared.processes import launched, run_forked

pytestmark = needs.distributed

PROGRAM = str(Path(__file__).parent / "two_ranks.py")
# Rows as on CUDA, of which some may vary, without a kernel to compile.
RUN = (
    *("run", "--simulate", "cuda", "--no-substitute", "--warn-only"),
    *("--override", "aten::cumsum=warn"),
)
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = (
    *("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
    *("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"),
)
ROWS = {
    ("aten::index_add_.default", "native", (0, 1), 2),
    ("aten::cumsum.default", "warn", (1,), 1),
}

Start = Callable[..., subprocess.CompletedProcess[str]]


def variables(folder: Path) -> dict[str, str]:
    """The environment of ranks whose files are in the folder."""
    return {
        "TMPDIR": str(folder / "tmp"),
        "HOME": str(folder),
        "DETMODE_CACHE": str(folder),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        # In a shared store ranks may find the addresses of the attempt before.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "COLUMNS": "200",
    }


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Runs Python in the test's folder, with one thread a process, and its files in that folder."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "tmp").mkdir(exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables(tmp_path)}
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )

    return run


def rows_of(path: Path) -> set[tuple[Any, ...]]:
    """The rows of a report: overload, action, ranks, and the calls."""
    rows = json.loads(path.read_text())["rows"]
    return {(row["overload"], row["action"], tuple(row["ranks"]), row["count"]) for row in rows}


VERDICT = re.compile("deterministic|may vary|not checked|not finished")


def verdicts(run: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in run.stderr.splitlines() if VERDICT.match(line)]


def left_behind(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "tmp").glob("detmode-ranks-*"))


LONG = ("spawn", "torchrun", "run_by_detmode", "no_python", "accelerate")
"""Launchers of the thorough profile: each starts processes for seconds."""


@pytest.mark.parametrize(
    "launcher",
    ["variables", *(pytest.param(name, marks=pytest.mark.thorough) for name in LONG)],
)
def test_one_report(launcher: str, start: Start, tmp_path: Path) -> None:
    """Whoever starts the ranks, each row says whose it is, and is printed and written once."""
    run = (*RUN, "--report", "report.json", "--sarif", "report.sarif")
    match launcher:
        case "variables":
            (tmp_path / "tmp").mkdir()
            environment = {**ENVIRONMENT, **launched(2), **variables(tmp_path)}
            detmode = ["detmode", *run, PROGRAM]
            done = run_forked("-m", [detmode] * 2, tmp_path, timeout=300, **environment)
        case "torchrun":
            done = start("-m", *TORCHRUN, "-m", "detmode", *run, PROGRAM)
        case "no_python":
            python = (sys.executable, "-m", "detmode")
            done = start("-m", *TORCHRUN, "--no-python", *python, *run, PROGRAM)
        case "run_by_detmode":
            done = start("-m", "detmode", *run, "-m", *TORCHRUN, PROGRAM)
        case "accelerate":
            pytest.importorskip("accelerate", reason="accelerate is not installed")
            done = start("-m", "detmode", *run, "-m", *ACCELERATE, PROGRAM)
        case "spawn":
            done = start("-m", "detmode", *run, PROGRAM, "--spawn")
    assert done.returncode == 0, done.stderr
    assert verdicts(done) == ["may vary: 1 call at 1 line (CUDA simulated)"]
    assert done.stderr.count("count  action") == 1
    assert done.stderr.count("  ranks 0-1\n") == 1
    assert rows_of(tmp_path / "report.json") >= ROWS
    results = json.loads((tmp_path / "report.sarif").read_text())["runs"][0]["results"]
    assert {result["properties"]["ranks"] for result in results} == {"0-1", "1"}
    assert not left_behind(tmp_path)


# What the report says of attempts and of ranks without one, the tests of one_report say too.
@pytest.mark.thorough
@needs.compiler
def test_ranks_that_start_again(start: Start, tmp_path: Path) -> None:
    """The last attempt's report has the rows of all; a failed one says what it has so far."""
    run = (*RUN, "--report", "report.json")
    arguments = ("--max-restarts", "1", "-m", "detmode", *run, PROGRAM, "--fault", "raise")
    done = start("-m", *TORCHRUN, *arguments)
    assert done.returncode == 0, done.stderr
    assert verdicts(done) == ["may vary: 2 calls at 1 line (CUDA simulated)"]
    assert "note: attempt 0 failed" in done.stderr
    assert ("aten::index_add_.default", "native", (0, 1), 4) in rows_of(tmp_path / "report.json")
    assert not left_behind(tmp_path)


@pytest.mark.thorough
@needs.compiler
@pytest.mark.parametrize("fault", ["kill", "raise", "stuck"])
def test_rank_that_dies(fault: str, start: Start, tmp_path: Path) -> None:
    """The others' rows are reported, and who has none; nobody waits for the dead."""
    run = (*RUN, "--report", "report.json")
    done = start("-m", *TORCHRUN, "-m", "detmode", *run, PROGRAM, "--fault", fault)
    assert done.returncode == 1
    whole = json.loads((tmp_path / "report.json").read_text())
    assert verdicts(done) == [whole["verdict"]]
    if fault == "kill":
        assert "may vary: 1 call at 1 line (without rank 0; " in whole["verdict"]
        assert whole["missing"] == {"ended without leaving a report": [0]}
        assert "note: rank 0: ended without leaving a report" in done.stderr
    else:
        assert "until then: may vary: 1 call at 1 line (CUDA" in whole["verdict"]
        assert whole["missing"] == {}
        assert ("aten::index_add_.default", "native", (0, 1), 2) in rows_of(
            tmp_path / "report.json"
        )
        assert "Unable to shutdown process" not in done.stderr
    assert not left_behind(tmp_path)


def test_launchers_that_start_no_python() -> None:
    """They are refused, and told to start detmode themselves."""
    with pytest.raises(ValueError, match="torchrun --no-python detmode run script.py"):
        under_detmode("torchrun", ["--no-python", "./train.sh"], ["run"], is_module=False)
    with pytest.raises(ValueError, match=r"give torch\.distributed\.run"):
        under_detmode("torch.distributed.launch", ["x.py"], ["run"], is_module=True)


@pytest.mark.parametrize(
    ("script", "module"),
    [
        (["torchrun"], "torch.distributed.run"),
        (["accelerate-launch"], "accelerate.commands.launch"),
        (["accelerate", "launch"], "accelerate.commands.launch"),
    ],
    ids=["torchrun", "accelerate-launch", "accelerate launch"],
)
@pytest.mark.parametrize(
    ("typed", "program"),
    [
        (["x.py", "-m", "a"], ["x.py", "-m", "a"]),
        (["-m", "x", "a"], ["-m", "x", "a"]),
        (["--", "x.py", "a"], ["x.py", "a"]),
    ],
)
def test_command_of_a_launcher(
    script: list[str], module: str, typed: list[str], program: list[str]
) -> None:
    """Its options stay, each rank runs detmode with the options that were given to it."""
    pytest.importorskip(module.partition(".")[0], reason="accelerate is not installed")
    detmode = ["run", "--report", "report.json"]
    options = ["--num_processes" if "accelerate" in module else "--nproc-per-node", "2"]
    name, *words = script
    command = under_detmode(f"/bin/{name}", [*words, *options, *typed], detmode, is_module=False)
    assert command == ["-m", module, *options, "-m", "detmode", *detmode, *program]
    assert under_detmode("train.py", [*options, *typed], detmode, is_module=False) is None


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({}, "run"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "run/rank1"),
        ({"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "2"}, "run/rank1.attempt2"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "run"),
        ({"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "1"}, "run.attempt1"),
    ],
)
def test_folder_of_a_recording(
    environment: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that is started again records beside its first recording."""
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert _path_of_rank(Path("run")) == Path(folder)
