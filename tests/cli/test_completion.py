"""Completion for a shell, by shtab."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.shared import ROOT

pytest.importorskip("shtab", reason="shtab is not installed")

COMPLETE = """
COMP_WORDS=({words}) COMP_CWORD={last}
_shtab_detmode detmode "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
echo "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def script():
    """The script that the documented command writes."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^(shtab .*) > ", page, re.M)
    command = [sys.executable, "-m", *shlex.split(command)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["ru"], ["run", "rules"]),
        (["run", "--str"], ["--strict"]),
        (["run", "--simulate", ""], ["cuda"]),
        (["run", "-o", "tra"], ["train.py"]),
        (["run", "tra"], ["train.py"]),
        (["diff", "--format", "s"], ["sarif"]),
    ],
    ids=" ".join,
)
def test_completion(script, words, completed, tmp_path):
    """Commands, options, their values and names of files are completed."""
    (tmp_path / "train.py").touch()
    typed = COMPLETE.format(words=shlex.join(["detmode", *words]), last=len(words))
    ran = subprocess.run(
        ["bash", "-c", script + typed], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert ran.stdout.split() == completed
