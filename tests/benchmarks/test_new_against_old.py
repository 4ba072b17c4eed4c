"""Two versions in one process: each call is its version's own."""

import shutil
from pathlib import Path

import new_against_old
import pytest
import torch
from new_against_old import Version
from timing import Clock

import detmode
from detmode.verify.cases import samples_of


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """A copy of this version, with a kernel that is wrong."""
    folder = tmp_path_factory.mktemp("old")
    package = Path(detmode.__file__).parent
    shutil.copytree(package, folder / "detmode", ignore=shutil.ignore_patterns("__pycache__"))
    kernels = folder / "detmode" / "cuda" / "rows" / "padding.cu"
    text = kernels.read_text(encoding="utf-8")
    assert "position, positions, group" in text
    kernels.write_text(text.replace("position, positions, group", "0, positions, group"))
    return Version(folder)


def test_each_version_runs_its_own_kernels(old: Version, clock: Clock) -> None:
    """A kernel that differs shows in the bits; one that does not, has the same."""
    lines = [
        new_against_old.line(samples_of(family).cases[0], torch.float32, clock, 2, old)
        for family in ("replication_pad", "put")
    ]
    assert [cells[-1] for cells in lines] == ["differ", "same"]
    assert float(lines[0][5]) > 0


def test_a_folder_without_a_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused in a line, and what is imported stays."""
    assert new_against_old.main(["--old", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"--old {tmp_path}: it has no folder detmode\n"
    assert new_against_old.detmode is detmode
