"""``detmode run``, ``record`` and ``probe``: what a program sees of them, and how it is started."""

import io
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch

from detmode import cuda
from detmode.cli import parser
from detmode.cli.locks import ENVIRONMENT
from detmode.mode import warm
from tests.shared import needs
from tests.shared.processes import run_forked
from tests.shared.selection import todays_forms

SHOW = """
import os, sys
print(sys.argv, sys.path[0], sys.stdin.read(), sorted(globals()), globals().get("__file__"))
print(__name__, __package__, os.environ["CUBLAS_WORKSPACE_CONFIG"])
assert sys.modules["__main__"].__dict__ is globals()
def end():
    sys.exit(len(sys.argv))
end()
"""
CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("folder/script.py", "--", "--report", "x"), id="script"),
        pytest.param(("-m", "package", "-m", "--warn-only"), id="module"),
        pytest.param(("package", "a"), id="folder"),
        pytest.param(("package.zip", "a"), id="zip file"),
        pytest.param(("-c", SHOW, "-c", "--", "-b"), id="code"),
        pytest.param(("--", "folder/script.py", "--", "-m"), id="dashes"),
        pytest.param(("-c", "import sys; sys.exit('no data')"), id="exit with a text"),
        pytest.param(("-c", "import sys; sys.exit()"), id="exit"),
        pytest.param(("-c", "def end():\n    {}['weights']\nend()"), id="error"),
    ],
)
def test_a_program_sees_what_python_shows_it(
    arguments, run_python, run_command, tmp_path, monkeypatch
):
    """Its arguments, paths and names; and its exit code and last words, which the report follows.

    A first "--" means what it means to Python.
    """
    for file in ("folder/script.py", "package/__init__.py", "package/__main__.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("" if "init" in file else SHOW)
    shutil.make_archive(str(tmp_path / "package"), "zip", tmp_path / "package")
    plain = run_python(*arguments, input="typed", **CUBLAS)
    monkeypatch.setattr(sys, "stdin", io.StringIO("typed"))
    ours = run_command("run", "--report", "report.json", *arguments)
    sys.modules.pop("package", None)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout), ours.stderr
    assert ours.stderr.startswith(plain.stderr)
    assert "no call ran on a GPU" in ours.stderr.removeprefix(plain.stderr)
    assert json.loads((tmp_path / "report.json").read_text())["rows"] == []
    assert [path.name for path in tmp_path.glob("*report*")] == ["report.json"]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            """
print(hash("detmode"))
assert "detmode" not in sys.modules or __import__("torch").are_deterministic_algorithms_enabled()
end()
""".join(SHOW.rsplit("end()", 1)),
            id="input",
        ),
        pytest.param("x = = 1", id="no Python", marks=pytest.mark.thorough),
    ],
)
def test_the_command_starts_over(program, run_python, tmp_path):
    """Variables that Python reads first are set; standard input survives, and is the program."""
    arguments = ("-", "a", "--", "-b")
    plain = run_python(*arguments, input=program, PYTHONHASHSEED="0", **CUBLAS)
    ours = run_python(
        *("-m", "detmode", "run", "--report", "report.json", *arguments), input=program
    )
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout), ours.stderr
    assert ours.stderr.startswith(plain.stderr)
    assert ours.returncode
    if "SyntaxError" not in plain.stderr:
        command = json.loads((tmp_path / "report.json").read_text())["command"]
        assert command[-5:] == ["report.json", *arguments]


def test_traceback_shows_no_frame_of_detmode(run_command, tmp_path):
    """A refused operator is shown from the script's line on, with PyTorch's message."""
    (tmp_path / "script.py").write_text(
        "import torch\ntorch.zeros(3).put_(torch.tensor([0]), torch.ones(1))\n"
    )
    ours = run_command("run", "--no-substitute", "--report", "report.json", "script.py")
    assert ours.returncode == 1
    assert f"detmode{os.sep}" not in ours.stderr.partition("RuntimeError")[0]
    assert f'File "{tmp_path / "script.py"}", line 2' in ours.stderr
    assert "put_ does not have a deterministic implementation" in ours.stderr
    (row,) = [
        row
        for row in json.loads((tmp_path / "report.json").read_text())["rows"]
        if row["action"] == "error"
    ]
    assert row["site"] == f"{tmp_path / 'script.py'}:2"
    with pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
        assert run_command("run", "--warn-only", "--no-substitute", "script.py").returncode == 0


@needs.compiler
def test_simulation_gives_the_same_bits_for_every_seed(run_command):
    """Kernels run on the host; the schedule's seed changes nothing."""
    code = """
import torch
torch.manual_seed(0)
x = torch.zeros(2).index_add(0, torch.zeros(300, dtype=torch.int64), torch.rand(300))
print(x.view(torch.int32).tolist())
"""
    simulate = ("run", "--simulate", "cuda")
    first, second = (
        run_command(*simulate, *seed, "-c", code) for seed in ((), ("--schedule-seed", "5"))
    )
    assert (first.returncode, first.stdout) == (second.returncode, second.stdout)
    assert first.returncode == 0, first.stderr
    assert re.search("^ +1 +substitute .*aten::index_add.default", first.stderr, re.MULTILINE)


@pytest.mark.thorough
def test_calls_made_twice(run_command):
    """A program fails whose last call differs when it is made again, and the report is given."""
    code = (
        "import itertools, torch\n"
        "numbers = itertools.count()\n"
        "@torch.library.custom_op('mine::number', mutates_args=())\n"
        "def number(x: torch.Tensor) -> torch.Tensor:\n"
        "    return x + next(numbers)\n"
        "number(torch.ones(3))\n"
    )
    ours = run_command("run", "--recheck", "1", "-c", code)
    assert ours.returncode == 1
    assert "RecheckError: mine::number.default gave other bits" in ours.stderr
    assert "3 of 4 calls made twice (recheck=1.0): 1 differed" in ours.stderr


TWICE = """
import random, sys, torch
x = torch.ones(3)
print("begin")
if len(sys.argv) > 1 and random.random() < 2:
    x = x * random.random()
x.cumsum(0)
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    todays_forms(
        [
            ((), 0, "the runs are identical"),
            (("draw",), 1, "the runs diverge at program.py:6, torch.mul: "),
            (("draw", "3"), 3, ""),
        ]
    ),
    ids=str,
)
@pytest.mark.usefixtures("forks_commands")
def test_run_twice(arguments, status, words, run_command, tmp_path):
    """The verdict is that of ``diff``; the program's output is shown once, and its failure wins."""
    (tmp_path / "program.py").write_text(TWICE)
    ours = run_command("run", "--twice", "program.py", *arguments)
    assert ours.returncode == status, ours.stderr
    assert words in ours.stdout
    assert ours.stdout.count("begin") == 1
    assert ("the recordings are in" in ours.stderr) == (status == 1)


@pytest.mark.thorough
def test_runs_are_processes(run_python, tmp_path):
    """The program is started anew for each run, by a command that is a process itself."""
    (tmp_path / "program.py").write_text(TWICE)
    ours = run_python("-m", "detmode", "run", "--twice", "program.py")
    assert (ours.returncode, ours.stderr) == (0, "")
    assert ours.stdout.startswith("begin\nthe runs are identical")


@pytest.mark.parametrize(
    ("code", "is_safe"),
    [("torch.empty(3).fill_(1).sum()", True), ("torch.empty(3).sum()", False), ("1", False)],
    ids=["written", "unwritten", "no call"],
)
def test_a_recording_says_whether_filling_can_be_left(code, is_safe, run_command):
    """In one line, where no recorded call has read memory that nobody had written."""
    ours = run_command("record", "-o", "run", "-c", f"import torch; {code}")
    assert ours.returncode == 0, ours.stderr
    assert ("fill_uninitialized_memory = False is safe" in ours.stderr) == is_safe
    read = "detmode: note: 1 call read uninitialized memory, and may vary: aten::sum.default at "
    assert (read in ours.stderr) == ("empty(3).sum" in code)


def test_each_rank_has_a_recording_of_its_own(run_command, tmp_path, monkeypatch):
    """In a folder that its number names."""
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        ours = run_command("record", "-o", "run", "-c", "import torch; torch.ones(2)")
        assert f"detmode: recorded to {Path('run') / f'rank{rank}'}" in ours.stderr
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["rank0", "rank1"]


HASHES = """
import os, sys
print(os.environ.get("PYTHONHASHSEED"), "torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize(
    ("command", "expected"),
    todays_forms(
        [
            pytest.param(("record", "-o", "first"), "None", id="record"),
            pytest.param(("probe",), "None", id="probe"),
            pytest.param(("record", "-o", "second", "--deterministic"), "0", id="deterministic"),
        ]
    ),
)
def test_what_is_only_observed_runs_as_by_itself(command, expected, run_python):
    """Without the mode no variable is set: runs that differ by hash order have other recordings.

    PyTorch's compiler, which takes longer to import than PyTorch, is left to programs that use it.
    """
    ours = run_python("-m", "detmode", *command, "-c", HASHES)
    assert ours.stdout.split()[:2] == [expected, "False"], ours.stderr


@pytest.mark.parametrize(
    ("options", "environment", "place"),
    [
        pytest.param((), {}, "cuda", id="alone"),
        pytest.param((), {"LOCAL_RANK": "1"}, "cuda:1", id="rank"),
        pytest.param((), {"LOCAL_RANK": "2"}, "cuda", id="rank with a GPU of its own"),
        pytest.param(("--simulate", "cuda"), {"LOCAL_RANK": "1"}, "cpu", id="simulated"),
    ],
)
def test_kernels_are_warm_when_the_program_starts(
    options, environment, place, run_command, monkeypatch
):
    """On the device that the process will use; a note tells what was done, unless it is quiet."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cuda, "unavailable", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(warm, "warm", lambda device: print(device) or "Warm.")
    for quiet in ((), ("--quiet",)):
        ours = run_command("run", "--warm", *options, *quiet, "-c", "print('started')")
        assert (ours.returncode, ours.stdout) == (0, f"{place}\nstarted\n"), ours.stderr
        assert ("detmode: note: Warm." in ours.stderr.splitlines()) is not bool(quiet)


def test_what_is_not_simulated_is_said(run_command, monkeypatch):
    """One line, and the script runs under the mode without simulation.

    Nor is a report without CUDA tensors taken for what a GPU would show.
    """
    monkeypatch.setenv("CXX", "/nowhere/g++")
    monkeypatch.setattr(cuda, "unavailable", cuda.unavailable.__wrapped__)  # a cache
    add = "torch.zeros(1).index_add(0, torch.tensor([0]), torch.ones(1))"
    for options, said in (
        (("--simulate", "cuda"), "not simulating CUDA: CXX is '/nowhere/g++'"),
        (("--warm", "--quiet"), "no kernels are compiled in advance: PyTorch "),
        ((), "PyTorch sees no GPU here"),
    ):
        ours = run_command("run", *options, "-c", f"import torch; print({add})")
        assert (ours.returncode, ours.stdout) == (0, "tensor([1.])\n"), ours.stderr
        assert "substitute" not in ours.stderr
        notes = [line for line in ours.stderr.splitlines() if line.startswith("detmode: note:")]
        if options or not torch.cuda.is_available():
            assert len(notes) == 1
            assert said in notes[0]


@needs.posix
def test_an_interrupted_program(tmp_path):
    """Ctrl-C gives a line in place of a traceback, and the report of what was done.

    What the program has started is stopped, what it registered for its exit runs, and it ends by
    the signal, of which a shell makes 130.
    """
    (tmp_path / "script.py").write_text(
        """
import atexit, multiprocessing, os, signal, time, torch
# Tests that are started in the background ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(500,))
child.start()
atexit.register(lambda: print("still alive:", child.is_alive()))
torch.empty(2)
os.kill(os.getpid(), signal.SIGINT)
time.sleep(500)
"""
    )
    command = ("detmode", "run", "--report", "report.json", "script.py")
    ours = run_forked("-m", [command], tmp_path, timeout=100, **ENVIRONMENT)
    assert ours.returncode == -signal.SIGINT, ours.stderr
    assert ours.stderr.startswith("detmode: interrupted at script.py:9\n")
    assert "Traceback" not in ours.stderr
    assert json.loads((tmp_path / "report.json").read_text())["rows"]
    assert ours.stdout == "still alive: False\n"


def test_an_interrupted_command(run_command, monkeypatch):
    """A command that runs no program says that it was interrupted, and ends in the same way."""

    def interrupted(*_):
        raise KeyboardInterrupt

    def die_of(number):
        raise SystemExit(128 + number)

    monkeypatch.setattr("detmode.environment.doctor.findings", interrupted)
    monkeypatch.setattr(parser, "die_of", die_of)
    ours = run_command("doctor")
    assert (ours.returncode, ours.stdout, ours.stderr) == (130, "", "detmode: interrupted\n")
