"""The command line: what a program sees, what is printed, and exit codes."""

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from detmode import Report, ReportRow, cuda, verify
from detmode.cli import parser
from detmode.cli.locks import ENVIRONMENT
from detmode.mode import warm
from detmode.reports import progress, terminal
from tests.shared import ROOT, needs
from tests.shared.processes import run_forked
from tests.shared.selection import todays_forms

Run = Callable[..., subprocess.CompletedProcess[str]]

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


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


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
    arguments: tuple[str, ...],
    run_python: Run,
    run_command: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
def test_the_command_starts_over(program: str, run_python: Run, tmp_path: Path) -> None:
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


def test_a_report_on_stdout(run_command: Run, tmp_path: Path) -> None:
    """`-` for a file is stdout; `audit` then prints nothing else there."""
    ours = run_command("run", "--report", "-", "-c", "print('above')")
    assert ours.returncode == 0, ours.stderr
    assert json.loads(ours.stdout.removeprefix("above\n"))["rows"] == []
    page = run_command("audit", "--html", "-", "-c", "print('not a page: \u00ef')")
    assert page.returncode == 0, page.stderr
    assert page.stdout.startswith("<!")
    assert not list(tmp_path.iterdir())


def test_traceback_shows_no_frame_of_detmode(run_command: Run, tmp_path: Path) -> None:
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
def test_simulation_gives_the_same_bits_for_every_seed(run_command: Run) -> None:
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
def test_calls_made_twice(run_command: Run) -> None:
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


def test_detmode_alone_is_help(run_command: Run) -> None:
    """It prints the commands, and first steps."""
    ours = run_command()
    assert (ours.returncode, ours.stderr) == (0, "")
    assert ours.stdout == run_command("--help").stdout


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
def test_run_twice(
    arguments: tuple[str, ...], status: int, words: str, run_command: Run, tmp_path: Path
) -> None:
    """The verdict is that of ``diff``; the program's output is shown once, and its failure wins."""
    (tmp_path / "program.py").write_text(TWICE)
    ours = run_command("run", "--twice", "program.py", *arguments)
    assert ours.returncode == status, ours.stderr
    assert words in ours.stdout
    assert ours.stdout.count("begin") == 1
    assert ("the recordings are in" in ours.stderr) == (status == 1)


PUT = "import torch; torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))"


@pytest.mark.parametrize("command", todays_forms([("run",), ("audit",), ("run", "--twice")]))
def test_defaults_of_a_project(
    command: tuple[str, ...], run_command: Run, run_python: Run, tmp_path: Path
) -> None:
    """`[tool.detmode]` stands for options that are not typed; typed ones win."""
    call = run_command if len(command) == 1 else partial(run_python, "-m", "detmode")
    assert call(*command, "--override", "aten::put=error", "-c", PUT).returncode == 1
    project = '[tool.detmode]\nstrict = true\noverride = ["aten::put=error"]\n'
    (tmp_path / "pyproject.toml").write_text(project)
    assert call(*command, "-c", PUT).returncode == 1
    allowed = call(*command, "--warn-only", "--override", "aten::put=allow", "-c", PUT)
    assert allowed.returncode == 0, allowed.stderr


def test_a_wrong_default_of_a_project(run_command: Run, tmp_path: Path) -> None:
    """One line names the file; commands for which it has no defaults do not read it."""
    for line, words in (
        ("strikt = true", "has no option 'strikt'; did you mean 'strict'?"),
        ("simulate = 'tpu'", "[tool.detmode] in pyproject.toml: error: argument --simulate: "),
    ):
        (tmp_path / "pyproject.toml").write_text(f"[tool.detmode]\n{line}\n")
        ours = run_command("run", "-c", "print(1)")
        assert (ours.returncode, ours.stdout) == (2, "")
        (shown,) = lines_of(ours.stderr)
        assert words in shown
        assert run_command("record", "-o", line, "-c", "print(1)").returncode == 0


def test_what_needs_a_mode(run_command: Run) -> None:
    """A policy without a mode would be ignored: it is refused."""
    ours = run_command("record", "-o", "run", "--warn-only", "-c", "print(1)")
    assert (ours.returncode, ours.stdout) == (2, "")
    assert "give --deterministic as well" in ours.stderr


@pytest.mark.parametrize(
    ("code", "is_safe"),
    [("torch.empty(3).fill_(1).sum()", True), ("torch.empty(3).sum()", False), ("1", False)],
    ids=["written", "unwritten", "no call"],
)
def test_a_recording_says_whether_filling_can_be_left(
    code: str, is_safe: bool, run_command: Run
) -> None:
    """In one line, where no recorded call has read memory that nobody had written."""
    ours = run_command("record", "-o", "run", "-c", f"import torch; {code}")
    assert ours.returncode == 0, ours.stderr
    assert ("fill_uninitialized_memory = False is safe" in ours.stderr) == is_safe
    read = "detmode: note: 1 call read uninitialized memory, and may vary: aten::sum.default at "
    assert (read in ours.stderr) == ("empty(3).sum" in code)


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
def test_what_is_only_observed_runs_as_by_itself(
    command: tuple[str, ...], expected: str, run_python: Run
) -> None:
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
    options: tuple[str, ...],
    environment: dict[str, str],
    place: str,
    run_command: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the device that the process will use; a note tells what was done, unless it is quiet."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cuda, "unavailable", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(warm, "warm", lambda device: print(device) or "Warm.")
    for quiet in ((), ("--quiet",)):
        ours = run_command("run", "--warm", *options, *quiet, "-c", "print('started')")
        assert (ours.returncode, ours.stdout) == (0, f"{place}\nstarted\n"), ours.stderr
        assert ("detmode: note: Warm." in lines_of(ours.stderr)) is not bool(quiet)


def test_what_is_not_simulated_is_said(run_command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
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
        notes = [line for line in lines_of(ours.stderr) if line.startswith("detmode: note:")]
        if options or not torch.cuda.is_available():
            assert len(notes) == 1
            assert said in notes[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), "script.py"),
        (("run", "nowhere.py"), "nowhere.py"),
        (("run", "-m", "no_such_module"), "no_such_module"),
        (("run", "--override", "aten::histc", "x.py"), "OP=ACTION"),
        (("run", "--override", "aten::histc=ignore", __file__), "ignore"),
        (("audit", "--override", "aten::histc=ignore", __file__), "ignore"),
        (("run", "--schedule-seed", "3", "x.py"), "--simulate"),
        (("run", "--warm", "--no-substitute", "x.py"), "leave one of them out"),
        (("run", "--recheck", "2", __file__), "from 0 to 1"),
        (("run", "--report", "/nowhere/report.json", "x.py"), "/nowhere"),
        (("run", "--html", "/", "x.py"), "is a folder"),
        (
            ("run", "--epochs", "3", "x.py"),
            "(the script's own options go after its name);",
        ),
        (("run", "--twice", "--warm", "x.py"), "to which --warm does not belong"),
        (("run", "--twice", "-"), "give a file in place of standard input"),
        (("doctor", "now"), "see 'detmode doctor --help'"),
        (("probe",), "script.py"),
        (("probe", "nowhere.py"), "nowhere.py"),
        (("probe", "--repeats", "0", "x.py"), "at least 1 repeat"),
        (("probe", "--report", "/nowhere/report.json", "x.py"), "/nowhere"),
        (("probe", "--skip", "histc", __file__), "'aten::histc'"),
        (("probe", "--skip", "aten::histcc", __file__), "did you mean 'aten::histc'"),
        (("run", "--"), "script.py"),
        (("run", "-m", "-c", "x"), "not allowed with"),
        (("run", "--quiet", "--long", "x.py"), "not allowed with"),
        (("run", "--report", "x", "--html", "./x", "x.py"), "both would be written to x"),
        (("record", "-o", "-", "x.py"), "a recording is a folder"),
        (("diff", "--", "nowhere", "-"), "no trace at nowhere; 'detmode record -o FOLDER SCRIPT'"),
        (("rules", "--torch", "new"), "2.13"),
        (("rules", "--torch", "2.13x"), "2.13"),
        (("rules", "--torch", "1.0"), "for PyTorch 2.8 to 2.15"),
        (("rules", "--op", "aten::histcc"), "no rule for 'aten::histcc'; did you mean 'aten::his"),
        (("rules", "--op", "*histcc*"), "no rule for '*histcc*'"),
        (("verify", "--repeats", "1"), "at least 2"),
        (("verify", "--family", "no_such_family"), "upsample"),
        (("verify", "--family", "upsampel"), "no family 'upsampel'; did you mean 'upsample'?"),
        (("explain",), "OP"),
        (("explain", "aten::index_ad"), "did you mean 'aten::index_add', 'aten::index_add_' or"),
        (("explain", "uniqe_dim"), "did you mean 'aten::unique_dim'"),
        (("explain", "torch.nn.functional.ctc_los"), "did you mean 'aten::ctc_loss'"),
        (("explain", "*histcc*"), "no operator and no rule is named '*histcc*'"),
        (("explain", "no_such::operator"), "no operator and no rule is named"),
        (("rules", "--format", "html"), "see 'detmode rules --help'"),
        (("rules", "-o", "rules.html"), "html is no form of this command's output; give --format"),
        (("record", "--format", "json", "-o", "run", "x.py"), "see 'detmode record --help'"),
        (("run", "--long", "--format", "json", "x.py"), "--all is about the table"),
        (("run", "--quiet", "--format", "html", "x.py"), "give html a file, with -o"),
        (("run", "-o", "x.json", "--report", "./x.json", "x.py"), "--report and -o: both would"),
        (("diff", "-o", "/nowhere/x.json", "a", "b"), "-o: there is no folder /nowhere"),
        (("run", "--repot", "x", "x.py"), "did you mean '--report'?"),
        (("recrod", "-o", "x", "x.py"), "there is no command 'recrod'; did you mean 'record'?"),
        (("bogus",), "no command 'bogus'; see 'detmode --help'"),
    ],
)
def test_wrong_usage_is_one_line_and_2(
    arguments: tuple[str, ...], words: str, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors name what was asked, or what to do; a terminal that is wide enough has one line."""
    monkeypatch.setenv("COLUMNS", "1000")
    ours = run_command(*arguments)
    assert (ours.returncode, ours.stdout) == (2, "")
    (line,) = lines_of(ours.stderr)
    assert words in line


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("DETMODE_LOG", "is no level; give debug, info, warning, error or critical"),
        ("DETMODE_LOG_FORMAT", "is no format; give text or json"),
    ],
)
def test_a_log_that_cannot_be(
    variable: str, words: str, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment's wishes for the log are checked by every command."""
    monkeypatch.setenv(variable, "bogus")
    ours = run_command("rules")
    assert (ours.returncode, ours.stdout) == (2, "")
    assert ours.stderr == f"detmode: error: {variable}='bogus' {words}\n"


def test_a_report_that_cannot_be_written_is_said_first(
    run_command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before the program runs, so that no work is lost."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    ours = run_command("run", "--report", "report.json", "x.py")
    assert ours.returncode == 2
    assert f"no permission to write to {tmp_path}" in ours.stderr


@pytest.mark.thorough
def test_a_script_whose_name_the_locale_cannot_read(run_python: Run, tmp_path: Path) -> None:
    """In the locale C the name of a file has surrogates; its reports have the name as it is."""
    (tmp_path / "scr\u00efpt.py").write_text("import torch\ntorch.empty(2)\n", encoding="utf-8")
    old = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ours = run_python(
        *("-m", "detmode", "run", "--html", "page.html", "--sarif", "report.sarif"),
        "scr\u00efpt.py",
        **old,
    )
    assert ours.returncode == 0, ours.stderr
    assert "scr\u00efpt" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "scr%C3%AFpt.py" in (tmp_path / "report.sarif").read_text(encoding="utf-8")


def test_rules(run_command: Run) -> None:
    """JSON has the fields of Rule and the family; `--torch` and `--op` leave out other rows.

    Who comes with PyTorch's message has the caller's name, not the operator's.
    """

    def rows(*options: str) -> list[dict[str, str]]:
        ours = run_command("rules", "--format", "json", *options)
        assert ours.returncode == 0, ours.stderr
        return json.loads(ours.stdout)

    fields = {"op", "when", "action", "guarantee", "alert", "since", "until", "because", "family"}
    fields |= {"certificate"}
    every = rows()
    assert every
    assert all(set(row) == fields for row in every)
    chosen = rows("--torch", "2.12", "--op", "*grid_sampler*")
    assert {row["family"] for row in chosen} == {"grid_sampler"}
    assert all(row["since"] is None or row["since"] == "2.8" for row in chosen)
    assert {row["op"] for row in rows("--op", "_histc_cuda*")} == {"aten::histc"}
    table = run_command("rules", "--op", "upsample_linear1d_backward").stdout
    assert "upsample_linear1d_backward_out_cuda" in table


def test_doctor(run_command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row has a state, an effect and a severity; exit code 1 where one is an error."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    ours = run_command("doctor", "--format", "json")
    assert ours.returncode == 0
    rows = {row["subject"]: row for row in json.loads(ours.stdout)}
    fields = {"subject", "state", "effect", "remedy", "severity"}
    assert all(set(row) == fields for row in rows.values())
    assert rows["PyTorch"]["state"] == torch.__version__
    assert ":4096:8" in rows["CUBLAS_WORKSPACE_CONFIG"]["remedy"]
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    ours = run_command("doctor")
    assert ours.returncode == 1
    assert re.match(r"1 error,( \d+ warnings?,)? \d+ notes \(--all shows them\)\n\n", ours.stdout)
    # `detmode run` sets it: nothing is to be done.
    assert "CUBLAS_WORKSPACE_CONFIG" not in ours.stdout
    everything = run_command("doctor", "--all").stdout
    assert re.match(r"1 error,( \d+ warnings?,)? \d+ notes\n\n", everything)
    assert "CUBLAS_WORKSPACE_CONFIG" in everything
    assert "`detmode run` sets" in " ".join(everything.split())


def test_tables_fit_a_narrow_terminal(run_command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is wider than the terminal becomes paragraphs; what is piped stays a table."""
    monkeypatch.delenv("COLUMNS", raising=False)
    table = run_command("rules").stdout
    monkeypatch.setenv("COLUMNS", "80")
    paragraphs = run_command("rules").stdout
    assert max(map(len, table.splitlines())) > 80
    assert max(map(len, paragraphs.splitlines())) <= 80
    assert "\n\naten::index_add\n  when       on('cuda')" in paragraphs
    assert "\n  because    " in paragraphs
    monkeypatch.setenv("COLUMNS", "900")
    assert run_command("rules").stdout == table
    assert "\n  because    " in run_command("rules", "--long").stdout


@needs.compiler
def test_verify_says_what_it_skips(run_command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims that cannot be checked here are in the matrix with their reason, and a line on stderr.

    An empty matrix is not taken for one in which everything holds.
    """
    every = verify.cases("ctc_loss")
    chosen = tuple(case for case in every if case.sample.name in ("large", "one_label"))
    monkeypatch.setattr(verify, "cases", lambda family: chosen)

    def verified(family: str) -> tuple[list[dict[str, Any]], str]:
        options = ("--device", "host", "--family", family, "--repeats", "2", "--format", "json")
        ours = run_command("verify", *options)
        assert ours.returncode == 0, ours.stderr
        return json.loads(ours.stdout), ours.stderr

    rows, notes = verified("ctc_loss")
    why = "2 of 8 checks of special values: in large calls ATen's CUDA kernels leave classes"
    assert {row["dtype"] for row in rows} == {"float32", "float64"}
    for row in rows:
        assert (row["family"], row["verdict"]) == ("ctc_loss", "holds")
        assert row["samples"] > 0
        (skipped,) = row["skipped"]
        assert skipped.startswith(why)
        assert f"detmode: note: ctc_loss {row['dtype']}: skipped {why}" in notes
    monkeypatch.undo()
    rows, notes = verified("rnn")
    assert rows == []
    assert "nothing to verify: family 'rnn' has no substitute" in notes


AUDITED = """
import os, sys, torch
print("from the program")
os.write(1, b"past Python\\n")
weight = torch.ones(1, 1, 4, 4, requires_grad=True)
torch.nn.functional.interpolate(weight, scale_factor=2, mode="bilinear").sum().backward()
sys.exit(int(sys.argv[1]))
"""


def test_audit(run_command: Run, tmp_path: Path) -> None:
    """The report stands alone on stdout, as a page and as SARIF beside it.

    Exit code 1 where PyTorch would raise, as without substitutes; a program that fails has its own.
    """
    (tmp_path / "script.py").write_text(AUDITED)
    files = ("--html", "audit.html", "--sarif", "audit.sarif")
    ours = run_command("audit", "--format", "json", *files, "script.py", "0")
    assert ours.returncode == 0, ours.stderr
    report = json.loads(ours.stdout)
    assert sorted(ours.stderr.splitlines()) == ["from the program", "past Python"]
    (row,) = (row for row in report["rows"] if row["family"] == "upsample")
    assert (row["action"], row["site"]) == ("substitute", f"{tmp_path / 'script.py'}:6")
    assert report["raises"] is False
    assert "Audit of a CUDA run" in (tmp_path / "audit.html").read_text()
    (sarif,) = json.loads((tmp_path / "audit.sarif").read_text())["runs"]
    assert {result["level"] for result in sarif["results"]} == {"note"}
    audit = ("audit", "--no-substitute")
    ours = run_command(*audit, "script.py", "0")
    assert ours.returncode == 1
    assert re.search(r" error .*upsample_bilinear2d_backward", ours.stdout)
    allowed = ("--override", "aten::upsample*=allow", "script.py", "0")
    assert run_command(*audit, *allowed).returncode == 0
    assert run_command(*audit, "script.py", "7").returncode == 7


def test_how_much_is_shown(run_command: Run, tmp_path: Path) -> None:
    """The verdict alone, every row with its reason, or JSON; a row is below its line of code.

    A call about which PyTorch is silent would raise under `--strict`.
    """
    (tmp_path / "script.py").write_text(
        "import torch\ntorch.empty(2)\ntorch.zeros(3).put_(torch.tensor([0]), torch.ones(1))\n"
    )
    verdict = "may vary: 1 call at 1 line"
    overridden = ("--override", "aten::put_=allow", "script.py")
    shown = run_command("run", *overridden).stderr
    assert shown.strip().startswith(f"{verdict}\nnext: at script.py:3, aten::put_")
    assert re.search("^script.py:3  torch.zeros.*\n +1 +allow +Tensor.put_ ", shown, re.MULTILINE)
    assert "aten::empty" not in shown
    long = run_command("audit", "--long", *overridden).stdout
    assert re.search("^script.py:3  torch.zeros.*\n(  .*\n)+  because ", long, re.MULTILINE)
    assert "aten::empty" in long
    assert run_command("run", "--quiet", *overridden).stderr.strip() == verdict
    written = run_command("run", "--format", "json", *overridden).stderr
    report = json.loads(written.rpartition("}\n")[0] + "}")
    assert (report["version"], report["verdict"]) == (3, verdict)
    silent = "import torch; torch.hspmm(torch.eye(2).to_sparse(), torch.ones(2, 2))"
    ours = run_command("audit", "--strict", "--quiet", "-c", silent)
    assert (ours.returncode, ours.stdout) == (1, f"{verdict}\n")


def test_help(run_command: Run, run_python: Run) -> None:
    """It has every command, with examples that are right; asking for it does not import PyTorch."""
    parsers, commands = parser._parsers()
    page = run_command("--help").stdout
    assert not [name for name in commands if not re.search(rf"^  {name} ", page, re.MULTILINE)]
    for name, command in commands.items():
        assert run_command(name, "--help").returncode == 0
        examples = re.findall(r"^  detmode (.*)", command.epilog or "", re.MULTILINE)
        assert examples
        for example in examples:
            options, unknown = parsers.parse_known_args(shlex.split(example))
            assert (options.command, unknown) == (name, []), example
    for arguments in (["--help"], ["run", "--help"]):
        lazy = f"""
import sys
from detmode.cli import main
try:
    main({arguments})
finally:
    assert not {{"torch", "jinja2", "tqdm", "tabulate", "difflib"}} & sys.modules.keys()
"""
        done = run_python("-c", lazy)
        assert (done.returncode, done.stderr) == (0, "")


def test_explain(run_command: Run) -> None:
    """All names of an operator lead to its rows, each with a remedy and a page that there is.

    An operator without a rule is no error.
    """

    def explained(*names: str) -> list[dict[str, Any]]:
        ours = run_command("explain", "--format", "json", *names)
        assert ours.returncode == 0, ours.stderr
        return json.loads(ours.stdout)

    rows = explained("aten::index_add")
    assert [row["action"] for row in rows] == ["Substitute", "Allow"]
    for name in ("index_add", "aten::index_add.default", "aten::index_add_", "index_add.out"):
        assert explained(name) == rows, name
    assert rows[0]["traffic"] >= 1
    assert "The floor is ``source``" in rows[0]["cost"]
    assert (ROOT / rows[0]["docs"]).is_file()
    assert explained("aten::relu", "histc") == explained("histc")
    several = explained("*index_add*", "aten::index_add")
    assert len(several) == len({(row["op"], row["when"]) for row in several})
    names = ("explain", "_histc_cuda with floating point input", "relu", "nn.ReLU")
    shown = run_command(*names).stdout
    unlisted = "\n  rule  no rule: nothing is known that makes it vary"
    assert shown.startswith(f"relu{unlisted}")
    assert f"nn.ReLU{unlisted}" in shown
    assert "because " in shown
    assert "remedy" not in shown
    assert "The floor" not in shown
    long = run_command(*names, "--long").stdout
    for words in ("because ", "remedy ", "traffic ", "histograms.md (What varies"):
        assert words in long
    # A terminal knows no markup.
    assert "The floor is `source` and" in run_command("explain", "--long", "index_add").stdout


def test_explain_says_once_what_several_operators_share(run_command: Run) -> None:
    """Operators whose rows are equal have one paragraph, and a row that is refused its remedy."""
    shown = run_command("explain", "_ctc_loss_backward", "_cudnn_rnn").stdout
    paragraphs = shown.split("\n\n")
    assert paragraphs[0].startswith("aten::_ctc_loss_backward, aten::_ctc_loss_backward.Tensor")
    assert "docs/rules/ctc_loss.md" in paragraphs[0]
    assert [line.split()[0] for line in paragraphs[1].splitlines()[1:] if line[2] != " "] == [
        *("when", "action", "because", "remedy", "otherwise")
    ]


@pytest.mark.parametrize("command", ["audit", "run"])
def test_the_options_of_the_command_line(command: str, run_command: Run) -> None:
    """Remedies name the options that are typed there, and not the arguments of a mode."""
    code = "import torch; torch.relu(torch.ones(2))"
    ours = run_command(command, "--override", "aten::relu=warn", "-c", code)
    assert "--override gives it this action" in ours.stdout + ours.stderr
    ours = run_command(command, "--warn-only", "--strict", "-c", code)
    assert "--warn-only asks for warnings and --strict for errors" in ours.stderr


@pytest.mark.parametrize("command", ["audit", "run"])
def test_every_form_and_a_file(command: str, run_command: Run, tmp_path: Path) -> None:
    """`--format` or the ending of `-o` chooses the form; what is in a file is not printed too.

    The verdict and the next step are.
    """
    (tmp_path / "script.py").write_text(
        "import torch\ntorch.zeros(3).put_(torch.tensor([0]), torch.ones(1))\n"
    )
    allowed = ("--override", "aten::put_=allow", "script.py")
    starts = {
        "a.json": '{\n  "version": 3',
        "a.sarif": '{\n  "$schema"',
        "a.html": "<!doctype html>",
        "a.txt": "may vary: 1 call at 1 line\nnext: at script.py:2",
    }
    for name, start in starts.items():
        ours = run_command(command, "-o", name, *allowed)
        assert ours.returncode == 0, ours.stderr
        written = (tmp_path / name).read_text()
        assert written.lower().startswith(start.lower())
        shown = (ours.stdout if command == "audit" else ours.stderr).strip()
        assert shown.startswith("may vary: 1 call at 1 line\nnext: ")
        assert "count " not in shown
        assert f"detmode: written to {name}" in ours.stderr
        form = {".txt": "table"}.get(Path(name).suffix, Path(name).suffix[1:])
        elsewhere = run_command(command, "--quiet", "--format", form, "-o", "b", *allowed)
        quiet = elsewhere.stdout + elsewhere.stderr
        assert quiet.strip() == "may vary: 1 call at 1 line"
        if name != "a.txt":  # has the command in it, or nothing that tells them apart
            assert len((tmp_path / "b").read_text()) > 200
        else:
            assert (tmp_path / "b").read_text() == written


def test_a_report_that_cannot_be_written_is_kept(run_command: Run, tmp_path: Path) -> None:
    """The run is not lost: it lies among temporary files, and the error says in which."""
    (tmp_path / "reports").mkdir()
    (tmp_path / "script.py").write_text("import os\nos.rmdir('reports')\n")
    ours = run_command("run", "-o", "reports/run.json", "script.py")
    assert ours.returncode == 2
    kept = re.search(r"cannot write reports/run.json: .*; it is in (\S+[.]json)\n", ours.stderr)
    assert kept is not None, ours.stderr
    assert json.loads(Path(kept[1]).read_text())["rows"] == []
    Path(kept[1]).unlink()


def test_annotations(run_command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """GitHub's workflow commands name a line of the repository, and escape what would end one."""
    (tmp_path / "a, b").mkdir()
    (tmp_path / "a, b" / "100%.py").write_text(
        "import torch\ntorch.zeros(3).put_(torch.tensor([0]), torch.ones(1))\ntorch.empty(2)\n"
    )
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.chdir(tmp_path / "a, b")
    options = ("--format", "github", "--no-substitute")
    ours = run_command("audit", *options, "100%.py")
    verdict, line, *rest = ours.stdout.splitlines()
    assert verdict.startswith("::error title=detmode%3A Audit of a CUDA run::may vary: 1 call")
    assert line.startswith(
        "::error file=a%2C b/100%25.py,line=2,title=aten%3A%3Aput_.default::aten::put_.default"
    )
    assert "%0Abecause: " in line
    assert len(rest) == 1, "calls that do not vary are counted only"
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    assert "::error title=PYTHONHASHSEED::" in run_command("doctor", "--format", "github").stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour(run_command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is for terminals that want it; what is piped has none, and the words are the same."""
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert terminal.has_colour(Terminal())
    assert not terminal.has_colour(io.StringIO())
    assert not terminal.has_colour(None)
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert not terminal.has_colour(Terminal())
    row = ReportRow("aten::histc.default", "user", "warn", None, None, 2, "a.py:1", None)
    report = Report([row])
    for width in (None, 100, 200):
        plain, coloured = (report.text(width=width, colour=each) for each in (False, True))
        assert "\x1b[33mmay vary: 2 calls at 1 line\x1b[0m\nnext: " in coloured
        assert re.search("\x1b\\[33mwarn *\x1b", coloured)
        assert re.sub("\x1b\\[[0-9]+m", "", coloured) == plain
    assert "\x1b" not in run_command("doctor").stdout + run_command("paint").stderr


@needs.posix
def test_an_interrupted_program(tmp_path: Path) -> None:
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


def test_an_interrupted_command(run_command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that runs no program says that it was interrupted, and ends in the same way."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def die_of(number: signal.Signals) -> None:
        raise SystemExit(128 + number)

    monkeypatch.setattr("detmode.environment.doctor.findings", interrupted)
    monkeypatch.setattr(parser, "die_of", die_of)
    ours = run_command("doctor")
    assert (ours.returncode, ours.stdout, ours.stderr) == (130, "", "detmode: interrupted\n")


@needs.posix
def test_a_count_stays_out_of_the_way() -> None:
    """On a terminal it stands below what the program prints, and not in a line that it has begun.

    Where stderr is no terminal there is none.
    """
    import fcntl
    import pty
    import struct
    import termios

    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    count = 0
    with pytest.MonkeyPatch.context() as patch, open(other, "w", buffering=1) as stream:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        patch.setattr(progress, "_SECONDS", 0.05)
        with progress.counted("recording", lambda: (count, "call")):
            for text in ("first\n", "half ", "a line\n"):
                print(text, end="")
                sys.stdout.flush()
                count += 7
                time.sleep(0.5)
        assert sys.stdout is stream
        print("end", flush=True)
        shown = ""
        while not shown.endswith("end\r\n"):
            shown += os.read(main, 10_000).decode()
        patch.setattr(sys, "stderr", io.StringIO())
        with progress.counted("recording", lambda: (1 << 20, "call")):
            assert sys.stdout is stream
    os.close(main)
    count_of = r"\rrecording: {} calls \[[^\]]*\]\r +\r"
    expected = f"first\r\n{count_of.format(7)}half a line\r\n{count_of.format(21)}end\r\n"
    assert re.fullmatch(expected, shown), repr(shown)
