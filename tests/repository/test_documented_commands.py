"""Commands that pages show, run as a reader would type them, print what the pages show."""

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared import ROOT, needs

PAGES = [ROOT / "docs" / "first-steps.md", *sorted(ROOT.glob("docs/how-to/*.md"))]
FILE = re.compile(r"```\{code-block\} \w+\n:caption: (\S+)\n\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CONSOLE = re.compile(r"```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# What depends on the machine or chance: digests, times, where Python is, how far runs differ.
VARYING = re.compile(
    r"\b[0-9a-f]{16}\b|\b\d+\.\d+s\b|(?<=File \").*(?=\", line)|(?<=line )\d+"
    r"|(?<=/rank)\d$|[\d,]+(?= (?:calls|differ|are only|only))|^(?:step|number) .*$"
    r"|(?<=only the )\w+(?= run makes)",
    re.MULTILINE,
)


def steps(page: str) -> Iterator[tuple[str, str]]:
    """The files of a page, names and texts, and the commands, with their output, in order."""
    found = [match for pattern in (FILE, CONSOLE) for match in pattern.finditer(page)]
    for match in sorted(found, key=re.Match.start):
        if match.re is FILE:
            yield match[1], match[2]
            continue
        for part in re.split(r"^\$ ", match[1], flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield f"$ {command}", output


def run(command: str, folder: Path) -> str:
    """The output of a command, on both streams, in a terminal of 80 columns."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        # As in a reader's first minutes, before the player is built, which counts native calls too.
        "DETMODE_NATIVE": "0",
    }
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, text=True, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    lines = done.stdout.replace(f"{folder}{os.sep}", "").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("[Gloo]"))


@needs.compiler
@pytest.mark.thorough
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_commands(path: Path, tmp_path: Path) -> None:
    """Each command of the page prints what stands below it."""
    page = path.read_text(encoding="utf-8")
    assert CONSOLE.search(page)
    check = doctest.OutputChecker().check_output
    for step, text in steps(page):
        if not step.startswith("$ "):
            (tmp_path / step).write_text(text, encoding="utf-8")
            continue
        printed = run(step[2:], tmp_path)
        wanted, got = (VARYING.sub("*", each) for each in (text, printed))
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert check(wanted, got, flags), f"{step}\n{printed}"
