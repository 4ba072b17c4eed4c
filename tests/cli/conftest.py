"""Commands that start processes of their own."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.shared.processes import run_forked


@pytest.fixture
def forks_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of ``detmode`` that a command calls need not import PyTorch first."""

    def call(command: list[str], stdout: Any = None) -> int:
        assert command[:3] == [sys.executable, "-m", "detmode"]
        ended = run_forked("-m", [command[2:]], tmp_path, timeout=100)
        print(ended.stderr, end="", file=sys.stderr)
        if stdout is None:
            print(ended.stdout, end="")
        return ended.returncode

    monkeypatch.setattr(subprocess, "call", call)
