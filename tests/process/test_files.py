"""Files that detmode writes, and files of others that it reads."""

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from detmode.process.files import read_file, replace_file

Run = Callable[..., subprocess.CompletedProcess[str]]

FORMS = ("--report", "run.json", "--html", "run.html", "--sarif", "run.sarif")
TRAINING = """
import os, sys, torch
torch.manual_seed(0)
os.makedirs("outputs", exist_ok=True)
os.chdir("outputs")
if "gone" in sys.argv:
    os.rmdir(os.getcwd())
torch.rand(3).sort()
"""


@pytest.fixture
def training(run_command: Run, tmp_path: Path) -> str:
    """A program that leaves the working directory in which it was started."""
    (tmp_path / "train.py").write_text(TRAINING)
    return "train.py"


def test_a_file_is_replaced_through_links(tmp_path: Path) -> None:
    """Its readers keep the old one; the links to it stay; nothing else is left in the folder."""
    file, link, dangling = (tmp_path / name for name in ("file", "link", "dangling"))
    file.write_text("old")
    link.symlink_to("file")
    dangling.symlink_to("new")
    with file.open() as reader:
        replace_file(link, b"new")
        assert reader.read() == "old"
    replace_file(dangling, b"first")
    assert (link.is_symlink(), file.read_text()) == (True, "new")
    assert (dangling.is_symlink(), (tmp_path / "new").read_text()) == (True, "first")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link", "dangling", "new"}


def _read_into(pipe: Path, texts: list[str]) -> None:
    texts.append(pipe.read_text())


def test_a_pipe_is_written_to(tmp_path: Path, run_command: Run) -> None:
    """``-o`` and ``--html`` give a named pipe its report, and the pipe stays one."""
    (tmp_path / "script.py").write_text("")
    for option in ("-o", "--html"):
        pipe = tmp_path / f"pipe{option}"
        os.mkfifo(pipe)
        read: list[str] = []
        reader = threading.Thread(target=_read_into, args=(pipe, read), daemon=True)
        reader.start()
        assert run_command("run", "--quiet", option, str(pipe), "script.py").returncode == 0
        reader.join(60)
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert "not checked: no call ran on a GPU" in read[0]


def test_a_device_is_written_to(tmp_path: Path) -> None:
    """Through a link too, and it stays a device."""
    controller, terminal = os.openpty()
    link = tmp_path / "link"
    link.symlink_to(os.ttyname(terminal))
    try:
        replace_file(link, b"report")
        assert stat.S_ISCHR(link.stat().st_mode)
        assert link.is_symlink()
        assert os.read(controller, 100) == b"report"
    finally:
        os.close(controller)
        os.close(terminal)


@pytest.mark.parametrize("redirected", [False, True])
def test_stdout_by_its_name(redirected: bool, tmp_path: Path) -> None:
    """Content written there comes in its place among what is printed, to a pipe and to a file."""
    # As /dev/stdout is one, which a mistake would replace for all programs.
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    code = "import sys; from detmode.process.files import replace_file; print('before'); "
    code += "replace_file(sys.argv[1], b'report\\n'); print('after')"
    with (tmp_path / "out").open("w") as file:
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "stdout")],
            stdout=file if redirected else subprocess.PIPE,
            check=True,
            text=True,
        )
    out = (tmp_path / "out").read_text() if redirected else done.stdout
    assert out.split() == ["before", "report", "after"]


def test_what_cannot_be_replaced(tmp_path: Path) -> None:
    """Nothing is left beside a folder, or where a folder is missing; the error is the system's."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "folder", b"")
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "missing" / "file", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("gone", [(), ("gone",)], ids=["moved", "gone"])
def test_commands_with_a_program_that_changes_its_folder(
    gone: tuple[str, ...], training: str, run_command: Run, tmp_path: Path
) -> None:
    """Recordings, locks and reports are whole and in their place, wherever the program went."""
    for command in (
        ("run", "--write-lock", "-o", "run.txt", *FORMS),
        ("record", "-o", "recorded", "--dump", "aten::sort@0"),
        ("probe", "-o", "probe.json"),
        ("audit", "-o", "audit.json"),
    ):
        os.chdir(tmp_path)
        found = run_command(*command, training, *gone)
        assert found.returncode == 0, found.stderr
        assert "Traceback" not in found.stderr
    os.chdir(tmp_path)
    written = {path.name for path in tmp_path.iterdir()} - {"train.py", "outputs"}
    reports = {"run.txt", *FORMS[1::2], "probe.json", "audit.json"}
    assert written == {*reports, "detmode.lock", "recorded"}
    assert all((tmp_path / report).stat().st_size for report in reports)
    assert (tmp_path / "recorded" / "detmode.lock").exists()
    assert [path.name for path in (tmp_path / "recorded" / "dumps").iterdir()] == [
        "aten.sort.default@0"
    ]
    assert run_command("run", "--quiet", "--locked", training).returncode == 0


def test_a_working_directory_that_is_gone(run_command: Run, tmp_path: Path) -> None:
    """A report with a relative name is refused before the program; others are written."""
    (tmp_path / "script.py").write_text("print(1)")
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    script = str(tmp_path / "script.py")
    found = run_command("run", "-o", "report.json", script)
    assert (found.returncode, found.stdout) == (2, "")
    assert "report.json: the working directory is gone; give an absolute path" in found.stderr
    found = run_command("run", "-o", str(tmp_path / "report.json"), script)
    assert (found.returncode, found.stdout) == (0, "1\n")
    assert json.loads((tmp_path / "report.json").read_text())["rows"] == []


def test_what_is_read_is_a_regular_file_of_bounded_size(tmp_path: Path) -> None:
    """A pipe is not waited for, a device has no end, and a sparse file may have any size."""
    file = tmp_path / "file"
    file.write_bytes(b"1234")
    assert read_file(file, 4) == b"1234"
    os.truncate(file, 1 << 40)
    with pytest.raises(ValueError, match="larger than 1 MiB"):
        read_file(file, 1 << 20)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            read_file(path, 4)
