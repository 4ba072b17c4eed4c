"""Two versions in one process: each call is its version's own."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import new_against_old
import pytest

import detmode
from detmode.verify.cases import samples_of
from tests.shared import ROOT


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of this version, with a kernel that is wrong."""
    package = Path(detmode.__file__).parent
    shutil.copytree(package, tmp_path / "detmode", ignore=shutil.ignore_patterns("__pycache__"))
    kernels = tmp_path / "detmode" / "cuda" / "rows" / "padding.cu"
    text = kernels.read_text(encoding="utf-8")
    assert "position, positions, group" in text
    kernels.write_text(text.replace("position, positions, group", "0, positions, group"))
    return tmp_path


@pytest.mark.thorough
def test_each_version_runs_its_own_kernels(old: Path, run_python: Callable[..., Any]) -> None:
    """A kernel that differs shows in the bits; one that does not, has the same."""
    # A process of its own: what two versions set in PyTorch stays.
    options = ["--old", str(old), "--tests", "--rounds", "2"]
    for family, bits in (("replication_pad", "differ"), ("put", "same")):
        sample = next(case.name for case in samples_of(family).cases)
        run = run_python(
            str(ROOT / "benchmarks" / "new_against_old.py"),
            *options, "--family", family, "--sample", sample,
        )  # fmt: skip
        lines = [line for line in run.stdout.splitlines() if f"  {sample}  " in line]
        assert {line.split()[-1] for line in lines} == {bits}, run.stdout + run.stderr
        assert run.returncode == (bits == "differ")


def test_a_folder_without_a_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused in a line, and what is imported stays."""
    assert new_against_old.main(["--old", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"--old {tmp_path}: it has no folder detmode\n"
    assert new_against_old.detmode is detmode
