"""The command line: what a program sees, what is printed, and exit codes."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import needs
import pytest
import torch

from detmode import cuda, verify
from detmode.mode import warm

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
    assert "intercepted no call" in ours.stderr.removeprefix(plain.stderr)
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
    assert re.search("^1 .*aten::index_add.default.* substitute ", first.stderr, re.MULTILINE)


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
        (("run", "--report", "/nowhere/report.json", "x.py"), "/nowhere"),
        (("run", "--html", "/", "x.py"), "is a folder"),
        (("run", "--epochs", "3", "x.py"), "after its name); see 'detmode run --help'"),
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
        (("diff", "--", "nowhere", "-"), "no trace at nowhere"),
        (("rules", "--torch", "new"), "2.13"),
        (("rules", "--torch", "2.13x"), "2.13"),
        (("rules", "--torch", "1.0"), "for PyTorch 2.8 to 2.15"),
        (("rules", "--op", "aten::histcc"), "no rule for 'aten::histcc'; did you mean 'aten::his"),
        (("rules", "--op", "*histcc*"), "no rule for '*histcc*'"),
        (("verify", "--repeats", "1"), "at least 2"),
        (("verify", "--family", "no_such_family"), "upsample"),
        (("verify", "--room", "no_such_family"), "upsample"),
        (("paint",), "paint"),
        ((), "COMMAND"),
    ],
)
def test_wrong_usage_is_one_line_and_2(
    arguments: tuple[str, ...], words: str, run_command: Run
) -> None:
    """Errors name what was asked, or what to do."""
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
    assert re.match(r"1 error, \d+ warnings?, \d+ notes\n\n", ours.stdout)
    assert "CUBLAS_WORKSPACE_CONFIG" in ours.stdout


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
    rows, notes = verified("matmul")
    assert rows == []
    assert "nothing to verify: family 'matmul' has no substitute" in notes


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
    assert re.search(r"upsample_bilinear2d_backward.* error ", ours.stdout)
    allowed = ("--override", "aten::upsample*=allow", "script.py", "0")
    assert run_command(*audit, *allowed).returncode == 0
    assert run_command(*audit, "script.py", "7").returncode == 7


def test_how_much_is_shown(run_command: Run, tmp_path: Path) -> None:
    """The verdict alone, every row with its reason, or JSON; a pipe gets a line a row.

    A call about which PyTorch is silent would raise under `--strict`.
    """
    (tmp_path / "script.py").write_text(
        "import torch\ntorch.empty(2)\ntorch.zeros(3).put_(torch.tensor([0]), torch.ones(1))\n"
    )
    verdict = "may vary: 1 call at 1 line"
    overridden = ("--override", "aten::put_=allow", "script.py")
    shown = run_command("run", *overridden).stderr
    assert shown.strip().startswith(f"{verdict}\nnext: at script.py:3, aten::put_")
    assert re.search("^1 .*aten::put_.* script.py:3", shown, re.MULTILINE)
    assert "aten::empty" not in shown
    long = run_command("audit", "--long", *overridden).stdout
    assert re.search("aten::put_.default\n(  .*\n)+  because ", long)
    assert "aten::empty" in long
    assert run_command("run", "--quiet", *overridden).stderr.strip() == verdict
    written = run_command("run", "--format", "json", *overridden).stderr
    report = json.loads(written.rpartition("}\n")[0] + "}")
    assert (report["version"], report["verdict"]) == (2, verdict)
    silent = "import torch; torch.mv(torch.eye(2).to_sparse(), torch.ones(2))"
    ours = run_command("audit", "--strict", "--quiet", "-c", silent)
    assert (ours.returncode, ours.stdout) == (1, f"{verdict}\n")
