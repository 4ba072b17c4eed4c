"""The output of the command line: its forms, widths, colours and files."""

import io
import json
import os
import re
import sys
import time
from pathlib import Path

import pytest

from detmode import Report, ReportRow
from detmode.reports import progress, terminal
from tests.shared import needs


def test_a_report_on_stdout(run_command, tmp_path):
    """`-` for a file is stdout; `audit` then prints nothing else there."""
    ours = run_command("run", "--report", "-", "-c", "print('above')")
    assert ours.returncode == 0, ours.stderr
    assert json.loads(ours.stdout.removeprefix("above\n"))["rows"] == []
    page = run_command("audit", "--html", "-", "-c", "print('not a page: \u00ef')")
    assert page.returncode == 0, page.stderr
    assert page.stdout.startswith("<!")
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_a_script_whose_name_the_locale_cannot_read(run_python, tmp_path):
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


def test_tables_fit_a_narrow_terminal(run_command, monkeypatch):
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


def test_how_much_is_shown(run_command, tmp_path):
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


@pytest.mark.parametrize("command", ["audit", "run"])
def test_every_form_and_a_file(command, run_command, tmp_path):
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


def test_a_report_that_cannot_be_written_is_kept(run_command, tmp_path):
    """The run is not lost: it lies among temporary files, and the error says in which."""
    (tmp_path / "reports").mkdir()
    (tmp_path / "script.py").write_text("import os\nos.rmdir('reports')\n")
    ours = run_command("run", "-o", "reports/run.json", "script.py")
    assert ours.returncode == 2
    kept = re.search(r"cannot write reports/run.json: .*; it is in (\S+[.]json)\n", ours.stderr)
    assert kept is not None, ours.stderr
    assert json.loads(Path(kept[1]).read_text())["rows"] == []
    Path(kept[1]).unlink()


def test_annotations(run_command, monkeypatch, tmp_path):
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


def test_colour(run_command, monkeypatch):
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
def test_a_count_stays_out_of_the_way():
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
        shown = ""

        def read_until(text):
            nonlocal shown
            while not re.search(text, shown):
                shown += os.read(main, 10_000).decode()

        with progress.counted("recording", lambda: (count, "call")):
            for text, wait in (
                ("first\n", lambda: read_until(r"7 calls .*\]")),
                ("half ", lambda: time.sleep(0.2)),
                ("a line\n", lambda: read_until(r"21 calls .*\]")),
            ):
                print(text, end="")
                sys.stdout.flush()
                count += 7
                wait()
        assert sys.stdout is stream
        print("end", flush=True)
        read_until("end\r\n$")
        patch.setattr(sys, "stderr", io.StringIO())
        with progress.counted("recording", lambda: (1 << 20, "call")):
            assert sys.stdout is stream
    os.close(main)
    count_of = r"\rrecording: {} calls \[[^\]]*\]\r +\r"
    expected = f"first\r\n{count_of.format(7)}half a line\r\n{count_of.format(21)}end\r\n"
    assert re.fullmatch(expected, shown), repr(shown)
