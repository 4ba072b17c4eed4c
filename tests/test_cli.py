"""The command line: what a program sees, what is printed, and exit codes."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import needs
import pytest
import torch

import detmode
from detmode import verify
from detmode.cli import parser as cli
from detmode.cli.commands.programs import ENVIRONMENT

Run = Callable[..., subprocess.CompletedProcess[str]]

SCRIPT = """
import os, sys
print(sys.argv, sys.path[0], __name__, __file__, __spec__, __package__)
print(os.environ["CUBLAS_WORKSPACE_CONFIG"], os.environ["PYTHONHASHSEED"], hash("detmode"))
assert sys.modules["__main__"].__dict__ is globals()
import torch
print(torch.are_deterministic_algorithms_enabled())
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A process that starts in a folder of its own, without the variables that `run` sets."""

    def start(
        *arguments: str, input: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        inherited = {name: os.environ[name] for name in os.environ if name not in ENVIRONMENT}
        inherited["PYTHONPATH"] = str(Path(detmode.__file__).parent.parent)
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**inherited, **environment},
            input=input,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return start


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def test_script_sees_what_python_shows_it(run: Run, tmp_path: Path) -> None:
    """`sys.argv` with a "--" in it, sys.path[0], __main__, the environment and the flag."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "script.py").write_text(SCRIPT)
    arguments = ("folder/script.py", "--", "--report", "x")
    plain = run(*arguments, CUBLAS_WORKSPACE_CONFIG=":4096:8", PYTHONHASHSEED="0")
    ours = run("-m", "detmode", "run", *arguments)
    assert ours.returncode == plain.returncode == 0, ours.stderr
    assert lines_of(ours.stdout)[:2] == lines_of(plain.stdout)[:2]
    assert lines_of(ours.stdout)[2:] == ["True"]
    assert "intercepted no call" in ours.stderr


@pytest.mark.thorough
def test_module_sees_what_python_shows_it(run: Run, tmp_path: Path) -> None:
    """`-m` runs a package's __main__, with the options after it left to the program."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "__main__.py").write_text(re.sub(r"__spec__, ", "", SCRIPT))
    arguments = ("-m", "package", "-m", "--warn-only")
    plain = run(*arguments, CUBLAS_WORKSPACE_CONFIG=":16:8", PYTHONHASHSEED="3")
    ours = run(
        *("-m", "detmode", "run", *arguments), CUBLAS_WORKSPACE_CONFIG=":16:8", PYTHONHASHSEED="3"
    )
    assert ours.returncode == plain.returncode == 0, ours.stderr
    assert lines_of(ours.stdout)[:2] == lines_of(plain.stdout)[:2]


@pytest.mark.thorough
def test_folder_and_zip_file_run_their_main(run: Run, tmp_path: Path) -> None:
    """As `python folder` and `python file.zip` do."""
    code = "import sys, other\nprint(sys.argv, sys.path[0], __name__, __file__, other.WORD)\n"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(code)
    (tmp_path / "folder" / "other.py").write_text("WORD = 'found'\n")
    shutil.make_archive(str(tmp_path / "file"), "zip", tmp_path / "folder")
    for target in ("folder", "file.zip"):
        plain = run(target, "argument")
        ours = run("-m", "detmode", "run", target, "argument")
        assert ours.returncode == plain.returncode == 0, ours.stderr
        assert ours.stdout == plain.stdout


SHOW = """
import os, sys
print(sys.argv, sys.path[0], sys.stdin.read(), sorted(globals()), globals().get("__file__"))
assert sys.modules["__main__"].__dict__ is globals()
def end():
    sys.exit(len(sys.argv))
end()
"""


@pytest.mark.parametrize(
    ("arguments", "input"),
    [
        pytest.param(("-", "a", "--", "-b"), SHOW, id="input", marks=pytest.mark.thorough),
        pytest.param(("-c", SHOW, "-c", "--", "-b"), "typed", id="code"),
        pytest.param(
            ("--", "script.py", "--", "-m"), "typed", id="dashes", marks=pytest.mark.thorough
        ),
        pytest.param(
            ("-c", "def end():\n    1 / 0\nend()"),
            "",
            id="error in code",
            marks=pytest.mark.thorough,
        ),
        pytest.param(("-",), "x = = 1", id="error in input"),
    ],
)
def test_input_and_code_see_what_python_shows_them(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], input: str
) -> None:
    """`-`, `-c` and a first "--" mean what they mean to Python; stdin survives the restart."""
    (tmp_path / "script.py").write_text(SHOW)
    plain = run(*arguments, input=input)
    ours = run("-m", "detmode", "run", *arguments, input=input)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout), ours.stderr
    assert ours.stderr.startswith(plain.stderr)
    assert ours.returncode


@pytest.mark.thorough
def test_a_report_on_stdout(run: Run, tmp_path: Path) -> None:
    """`-` for a file is stdout; `audit` then prints nothing else there."""
    ours = run("-m", "detmode", "run", "--report", "-", "-c", "print('above')")
    assert ours.returncode == 0, ours.stderr
    assert json.loads(ours.stdout.removeprefix("above\n"))["rows"] == []
    page = run("-m", "detmode", "audit", "--html", "-", "-c", "print('not a page: \u00ef')")
    assert page.returncode == 0, page.stderr
    assert page.stdout.startswith("<!")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("sys.exit(7)", 7, ""),
        pytest.param("sys.exit('no data')", 1, "no data\n", marks=pytest.mark.thorough),
        pytest.param("sys.exit()", 0, "", marks=pytest.mark.thorough),
        ("raise KeyError('weights')", 1, "KeyError: 'weights'\n"),
    ],
)
def test_exit_code_is_the_scripts(run: Run, tmp_path: Path, end: str, code: int, said: str) -> None:
    """The report follows what Python itself would have said."""
    (tmp_path / "script.py").write_text(f"import sys\ndef end():\n    {end}\nend()\n")
    ours = run("-m", "detmode", "run", "--report", "report.json", "script.py")
    assert ours.returncode == code
    before, _, after = ours.stderr.rpartition("\n\n") if said else ("", "", ours.stderr)
    assert f"{before}\n".endswith(said)
    assert "intercepted" in after
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["rows"], report["command"][-2:]) == ([], ["report.json", "script.py"])
    assert [path.name for path in tmp_path.glob("*report*")] == ["report.json"]


@pytest.mark.thorough
def test_traceback_shows_no_frame_of_detmode(run: Run, tmp_path: Path) -> None:
    """A refused operator is shown from the script's line on, with PyTorch's message."""
    (tmp_path / "script.py").write_text(
        "import torch\ntorch.zeros(3).put_(torch.tensor([0]), torch.ones(1))\n"
    )
    ours = run("-m", "detmode", "run", "--no-substitute", "--report", "report.json", "script.py")
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
    warned = run("-m", "detmode", "run", "--warn-only", "--no-substitute", "script.py")
    assert warned.returncode == 0, warned.stderr


@pytest.mark.thorough
@needs.compiler
def test_simulation_gives_the_same_bits_for_every_seed(run: Run, tmp_path: Path) -> None:
    """Kernels run on the host; the schedule's seed changes nothing."""
    (tmp_path / "script.py").write_text(
        "import torch\n"
        "x = torch.linspace(0, 1, 48).reshape(1, 3, 4, 4).requires_grad_()\n"
        "y = torch.nn.functional.interpolate(x, scale_factor=3, mode='bilinear')\n"
        "y.square().sum().backward()\n"
        "print(x.grad.flatten().view(torch.int32).tolist())\n"
    )
    simulate = ("-m", "detmode", "run", "--simulate", "cuda", "--report", "report.json")
    first, second = (run(*simulate, *seed, "script.py") for seed in ((), ("--schedule-seed", "5")))
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stdout == second.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    actions = {row["overload"]: row["action"] for row in report["rows"]}
    assert actions["aten::upsample_bilinear2d_backward.default"] == "substitute"


def test_simulation_without_a_compiler_says_so_and_runs(run: Run, tmp_path: Path) -> None:
    """One line, and the script runs under the mode without simulation."""
    (tmp_path / "script.py").write_text("import torch\nprint(torch.ones(2).sum().item())\n")
    ours = run(
        *("-m", "detmode", "run", "--simulate", "cuda", "script.py"),
        PATH="/nowhere",
        CXX="/nowhere/g++",
    )
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == "2.0\n"
    (note,) = [line for line in lines_of(ours.stderr) if line.startswith("detmode: note:")]
    assert "not simulating CUDA" in note


@pytest.mark.thorough
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_run_without_a_gpu_says_so(run: Run, tmp_path: Path) -> None:
    """A report without CUDA tensors is not taken for what a GPU would show."""
    (tmp_path / "script.py").write_text("")
    note = "detmode: note: PyTorch sees no GPU here"
    assert note in run("-m", "detmode", "run", "script.py").stderr
    simulated = run("-m", "detmode", "run", "--simulate", "cuda", "script.py")
    assert note not in simulated.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), "script.py"),
        (("run", "nowhere.py"), "nowhere.py"),
        (("run", "-m", "no_such_module"), "no_such_module"),
        (("run", "--override", "aten::histc", "x.py"), "OP=ACTION"),
        (("run", "--schedule-seed", "3", "x.py"), "--simulate"),
        (("run", "--report", "/nowhere/report.json", "x.py"), "/nowhere"),
        (("run", "--html", "/", "x.py"), "is a folder"),
        (("run", "--epochs", "3", "x.py"), "after its name); see 'detmode run --help'"),
        (("doctor", "now"), "see 'detmode doctor --help'"),
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
        (("paint",), "paint"),
        ((), "COMMAND"),
    ],
)
def test_wrong_usage_is_one_line_and_2(
    arguments: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Errors name what was asked, or what to do."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)  # nothing to restart for
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        code = cli.main(arguments)
    except SystemExit as error:
        code = error.code
    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    assert len(lines_of(printed.err)) == 1
    assert words in printed.err


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("DETMODE_LOG", "is no level; give debug, info, warning, error or critical"),
        ("DETMODE_LOG_FORMAT", "is no format; give text or json"),
    ],
)
def test_a_log_that_cannot_be(
    variable: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the environment says of the log is checked by every command."""
    monkeypatch.setenv(variable, "bogus")
    assert cli.main(["rules"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"detmode: error: {variable}='bogus' {words}\n"


def test_a_report_that_cannot_be_written_is_said_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before the program runs, so that no work is lost."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert cli.main(["run", "--report", str(tmp_path / "report.json"), "x.py"]) == 2
    assert f"no permission to write to {tmp_path}" in capsys.readouterr().err


@pytest.mark.thorough
def test_unknown_override_action_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    """The mode's own words, on one line."""
    (tmp_path / "script.py").write_text("")
    ours = run("-m", "detmode", "run", "--override", "aten::histc=ignore", "script.py")
    assert ours.returncode == 2
    assert len(lines_of(ours.stderr)) == 1
    assert "ignore" in ours.stderr


@pytest.mark.thorough
def test_a_script_whose_name_the_locale_cannot_read(run: Run, tmp_path: Path) -> None:
    """In the locale C the name of a file has surrogates; its reports have the name as it is."""
    (tmp_path / "scr\u00efpt.py").write_text("import torch\ntorch.empty(2)\n", encoding="utf-8")
    old = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ours = run(
        *("-m", "detmode", "run", "--html", "page.html", "--sarif", "report.sarif"),
        "scr\u00efpt.py",
        **old,
    )
    assert ours.returncode == 0, ours.stderr
    assert "scr\u00efpt" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "scr%C3%AFpt.py" in (tmp_path / "report.sarif").read_text(encoding="utf-8")


def test_rules_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Objects with the fields of Rule as text, and the family."""
    assert cli.main(["rules", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    fields = {"op", "when", "action", "guarantee", "alert", "since", "until", "because", "family"}
    assert rows
    assert all(set(row) == fields for row in rows)


def test_rules_for_a_version_and_an_operator(capsys: pytest.CaptureFixture[str]) -> None:
    """`--torch` leaves out the rows of other versions, `--op` those of other operators."""
    assert cli.main(["rules", "--torch", "2.12", "--op", "*grid_sampler*", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["family"] for row in rows} == {"grid_sampler"}
    assert all(row["since"] is None or row["since"] == "2.8" for row in rows)
    assert cli.main(["rules", "--op", "upsample_linear1d_backward"]) == 0
    assert "upsample_linear1d_backward_out_cuda" in capsys.readouterr().out


def test_rules_by_the_name_in_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    """Who comes with PyTorch's message has the caller's name, not the operator's."""
    assert cli.main(["rules", "--op", "_histc_cuda*", "--format", "json"]) == 0
    assert {row["op"] for row in json.loads(capsys.readouterr().out)} == {"aten::histc"}


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row has a state, an effect and a severity; exit code 1 where one is an error."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert cli.main(["doctor", "--format", "json"]) == 0
    rows = {row["subject"]: row for row in json.loads(capsys.readouterr().out)}
    fields = {"subject", "state", "effect", "remedy", "severity"}
    assert all(set(row) == fields for row in rows.values())
    assert rows["PyTorch"]["state"] == torch.__version__
    assert ":4096:8" in rows["CUBLAS_WORKSPACE_CONFIG"]["remedy"]
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    assert cli.main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert re.match(r"1 error, \d+ warnings?, \d+ notes\n\n", printed)
    assert "CUBLAS_WORKSPACE_CONFIG" in printed


def test_tables_fit_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is wider than the terminal becomes paragraphs; what is piped stays a table."""
    monkeypatch.delenv("COLUMNS", raising=False)
    assert cli.main(["rules"]) == 0
    table = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["rules"]) == 0
    paragraphs = capsys.readouterr().out
    assert max(map(len, table.splitlines())) > 80
    assert max(map(len, paragraphs.splitlines())) <= 80
    assert "\n\naten::index_add\n  when       on('cuda')" in paragraphs
    assert "\n  because    " in paragraphs
    monkeypatch.setenv("COLUMNS", "900")
    assert cli.main(["rules"]) == 0
    assert capsys.readouterr().out == table
    assert cli.main(["rules", "--long"]) == 0
    assert "\n  because    " in capsys.readouterr().out


@pytest.mark.thorough
@needs.compiler
def test_verify_a_family(capsys: pytest.CaptureFixture[str]) -> None:
    """The matrix has a row for each dtype of the family."""
    arguments = ["verify", "--device", "host", "--family", "adaptive_avg_pool", "--repeats", "2"]
    code = cli.main([*arguments, "--format", "json"])
    printed = capsys.readouterr()
    rows = json.loads(printed.out)
    assert code == 0, printed.err
    assert {row["family"] for row in rows} == {"adaptive_avg_pool"}
    assert {row["dtype"] for row in rows} == {"float16", "bfloat16", "float32", "float64"}
    assert all(row["verdict"] == "holds" and row["samples"] > 0 for row in rows)


@needs.compiler
def test_verify_says_what_it_skips(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be checked here is in the matrix with its reason, and a line on stderr."""
    every = verify.cases("ctc_loss")
    chosen = tuple(case for case in every if case.sample.name in ("large", "one_label"))
    monkeypatch.setattr(verify, "cases", lambda family: chosen)
    arguments = ["verify", "--device", "host", "--family", "ctc_loss", "--repeats", "2"]
    assert cli.main([*arguments, "--format", "json"]) == 0
    printed = capsys.readouterr()
    why = "2 of 8 checks of special values: in large calls ATen's CUDA kernels leave classes"
    for row in json.loads(printed.out):
        (skipped,) = row["skipped"]
        assert skipped.startswith(why)
        assert f"detmode: note: ctc_loss {row['dtype']}: skipped {why}" in printed.err


@needs.compiler
def test_verify_a_family_without_substitutes(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty matrix is not taken for one in which everything holds."""
    assert cli.main(["verify", "--device", "host", "--family", "matmul", "--format", "json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == []
    assert "nothing to verify: family 'matmul' has no substitute" in printed.err


def test_a_recording_has_the_programs_arguments(run: Run, tmp_path: Path) -> None:
    """Not those of the command that records."""
    (tmp_path / "script.py").write_text("")
    ours = run("-m", "detmode", "record", "-o", "first", "script.py", "--lr", "0.1")
    assert ours.returncode == 0, ours.stderr
    about = json.loads((tmp_path / "first" / "trace.json").read_text())
    assert about["arguments"] == ["script.py", "--lr", "0.1"]


AUDITED = """
import os, sys, torch
print("from the program")
os.write(1, b"past Python\\n")
weight = torch.ones(1, 1, 4, 4, requires_grad=True)
torch.nn.functional.interpolate(weight, scale_factor=2, mode="bilinear").sum().backward()
sys.exit(int(sys.argv[1]))
"""


def test_audit(run: Run, tmp_path: Path) -> None:
    """The report stands alone on stdout, as a page and as SARIF beside it; nothing would raise."""
    (tmp_path / "script.py").write_text(AUDITED)
    files = ("--html", "audit.html", "--sarif", "audit.sarif")
    ours = run("-m", "detmode", "audit", "--format", "json", *files, "script.py", "0")
    assert ours.returncode == 0, ours.stderr
    report = json.loads(ours.stdout)
    assert sorted(ours.stderr.splitlines()) == ["from the program", "past Python"]
    (row,) = (row for row in report["rows"] if row["family"] == "upsample")
    assert (row["action"], row["site"]) == ("substitute", f"{tmp_path / 'script.py'}:6")
    assert report["raises"] is False
    assert "Audit of a CUDA run" in (tmp_path / "audit.html").read_text()
    (sarif,) = json.loads((tmp_path / "audit.sarif").read_text())["runs"]
    assert {result["level"] for result in sarif["results"]} == {"note"}


@pytest.mark.thorough
def test_how_much_is_shown(run: Run, tmp_path: Path) -> None:
    """The verdict alone, every row with its reason, or JSON; a pipe gets a line a row."""
    (tmp_path / "script.py").write_text(
        "import torch\ntorch.empty(2)\ntorch.zeros(3).put_(torch.tensor([0]), torch.ones(1))\n"
    )
    verdict = "may vary: 1 call at 1 line"
    overridden = ("--override", "aten::put_=allow", "script.py")
    shown = run("-m", "detmode", "run", *overridden).stderr
    assert shown.strip().startswith(f"{verdict}\nnext: at script.py:3, aten::put_")
    assert re.search("^1 .*aten::put_.* script.py:3", shown, re.MULTILINE)
    assert "aten::empty" not in shown
    long = run("-m", "detmode", "audit", "--long", *overridden).stdout
    assert re.search("aten::put_.default\n(  .*\n)+  because ", long)
    assert "aten::empty" in long
    assert run("-m", "detmode", "run", "--quiet", *overridden).stderr.strip() == verdict
    written = run("-m", "detmode", "run", "--format", "json", *overridden).stderr
    report = json.loads(written.rpartition("}\n")[0] + "}")
    assert (report["version"], report["verdict"]) == (2, verdict)


def test_strict(run: Run, tmp_path: Path) -> None:
    """A call about which PyTorch is silent would raise under `--strict`."""
    (tmp_path / "script.py").write_text(
        "import torch\ntorch.mv(torch.eye(2).to_sparse(), torch.ones(2))\n"
    )
    ours = run("-m", "detmode", "audit", "--strict", "--quiet", "script.py")
    assert (ours.returncode, ours.stdout) == (1, "may vary: 1 call at 1 line\n")


@pytest.mark.thorough
def test_audit_exits_with_1_where_something_would_raise(run: Run, tmp_path: Path) -> None:
    """Without substitutes PyTorch would; a program that fails gives its own exit code."""
    (tmp_path / "script.py").write_text(AUDITED)
    audit = ("-m", "detmode", "audit", "--no-substitute")
    ours = run(*audit, "script.py", "0")
    assert ours.returncode == 1
    assert re.search(r"upsample_bilinear2d_backward.* error ", ours.stdout)
    assert run(*audit, "--override", "aten::upsample*=allow", "script.py", "0").returncode == 0
    assert run(*audit, "script.py", "7").returncode == 7
    assert run(*audit, "--override", "aten::histc=ignore", "script.py", "0").returncode == 2
