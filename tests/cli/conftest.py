"""Commands that start processes of their own."""

import subprocess
import sys

import pytest

from tests.shared.processes import run_forked


@pytest.fixture
def forks_commands(tmp_path, monkeypatch):
    """Commands of ``detmode`` that a command calls need not import PyTorch first."""

    def call(command, stdout=None):
        assert command[:3] == [sys.executable, "-m", "detmode"]
        ended = run_forked("-m", [command[2:]], tmp_path, timeout=100)
        print(ended.stderr, end="", file=sys.stderr)
        if stdout is None:
            print(ended.stdout, end="")
        return ended.returncode

    monkeypatch.setattr(subprocess, "call", call)
