"""The tests without packages of the group ``tests``: a line for each that is missing, no error."""

import os
import subprocess
import sys

import pytest

from tests.shared import ROOT, needs

COLLECT = """
import importlib.machinery, os, sys

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        missing = name.partition(".")[0] in {missing}
        return None if missing else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
import pytest
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""
PLUGINS = {"pytest_randomly", "pytest_rerunfailures", "pytest_timeout", "xdist"}
MISSING = needs.PACKAGES | PLUGINS | {"IPython", "expecttest", "hatchling", "mypy", "pandas"}


@pytest.mark.parametrize(
    "paths",
    [
        ("tests/rules/put", "tests/integrations", "tests/process/test_undo.py"),
        pytest.param((), marks=pytest.mark.thorough, id="all"),
    ],
)
def test_what_cannot_run_is_left_out(paths: tuple[str, ...]) -> None:
    """With pytest, PyTorch and what detmode itself needs, nothing stops the other tests."""
    command = [sys.executable, "-c", COLLECT.format(missing=set(MISSING)), *paths]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment |= {"PYTEST_PLUGINS": "detmode.testing.pytest_plugin"}
    run = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "files are left out, which need hypothesis: it is not installed" in run.stdout
    assert "tests/process/test_undo.py::" in run.stdout
