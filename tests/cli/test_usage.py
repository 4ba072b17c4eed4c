"""The usage of the command line: options, their defaults, help, and errors of one line."""

import os
import re
import shlex

import pytest

from detmode.cli import parser
from tests.shared.selection import todays_forms


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def test_detmode_alone_is_help(run_command):
    """It prints the commands, and first steps."""
    ours = run_command()
    assert (ours.returncode, ours.stderr) == (0, "")
    assert ours.stdout == run_command("--help").stdout


PUT = "import torch; torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))"


@pytest.mark.parametrize("command", todays_forms([("run",), ("audit",), ("run", "--twice")]))
@pytest.mark.usefixtures("forks_commands")
def test_defaults_of_a_project(command, run_command, tmp_path):
    """`[tool.detmode]` stands for options that are not typed; typed ones win."""
    assert run_command(*command, "--override", "aten::put=error", "-c", PUT).returncode == 1
    project = '[tool.detmode]\nstrict = true\noverride = ["aten::put=error"]\n'
    (tmp_path / "pyproject.toml").write_text(project)
    assert run_command(*command, "-c", PUT).returncode == 1
    allowed = run_command(*command, "--warn-only", "--override", "aten::put=allow", "-c", PUT)
    assert allowed.returncode == 0, allowed.stderr


def test_a_wrong_default_of_a_project(run_command, tmp_path):
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
        (("run", "--epochs", "3", "x.py"), "(the script's own options go after its name);"),
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
        (("record", "-o", "x", "--warn-only", "-c", "print(1)"), "give --deterministic as well"),
        (("record", "-o", "x", "--steps", "7", "-c", "print(1)"), "give them as BEGIN:END"),
        (("record", "-o", "x", "--steps", "7:7", "-c", "print(1)"), "give them as BEGIN:END"),
        (("record", "-o", "x", "--level", "line", "-c", "print(1)"), "invalid choice: 'line'"),
        (
            ("record", "-o", "x", "--level=step", "--dump=aten::mm@0", "-c", "print(1)"),
            "level 'step' sees no calls to dump",
        ),
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
        (("explain", "torch.nn.functional.ctc_los"), "did you mean 'ctc_loss'"),
        (("explain", "nn.AvgPol3d"), "did you mean 'AvgPool3d'"),
        (("explain", "torch.uniqe_dim"), "did you mean 'aten::unique_dim'"),
        (("rules", "--op", "F.interpolat"), "did you mean 'interpolate'"),
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
def test_wrong_usage_is_one_line_and_2(arguments, words, run_command, monkeypatch):
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
def test_a_log_that_cannot_be(variable, words, run_command, monkeypatch):
    """The environment's wishes for the log are checked by every command."""
    monkeypatch.setenv(variable, "bogus")
    ours = run_command("rules")
    assert (ours.returncode, ours.stdout) == (2, "")
    assert ours.stderr == f"detmode: error: {variable}='bogus' {words}\n"


def test_a_report_that_cannot_be_written_is_said_first(run_command, monkeypatch, tmp_path):
    """Before the program runs, so that no work is lost."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    ours = run_command("run", "--report", "report.json", "x.py")
    assert ours.returncode == 2
    assert f"no permission to write to {tmp_path}" in ours.stderr


def test_help(run_command, run_python):
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


@pytest.mark.parametrize("command", ["audit", "run"])
def test_the_options_of_the_command_line(command, run_command):
    """Remedies name the options that are typed there, and not the arguments of a mode."""
    code = "import torch; torch.relu(torch.ones(2))"
    ours = run_command(command, "--override", "aten::relu=warn", "-c", code)
    assert "--override gives it this action" in ours.stdout + ours.stderr
    ours = run_command(command, "--warn-only", "--strict", "-c", code)
    assert "--warn-only asks for warnings and --strict for errors" in ours.stderr
