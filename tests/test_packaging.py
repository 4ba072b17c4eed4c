"""The wheel, the README's commands and the types, as they are shipped."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_wheel_contains_every_source(tmp_path: Path) -> None:
    """Without its sources the package launches nothing; without its templates it shows no page."""
    builders = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed")
    (wheel,) = builders.WheelBuilder(str(ROOT)).build(
        directory=str(tmp_path), versions=["standard"]
    )
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        points = archive.read(entry_points).decode()
    package = ROOT / "detmode"
    expected = {
        str(path.relative_to(ROOT))
        for suffix in ("cu", "cuh", "h", "py", "pyi", "typed", "html", "css", "js")
        for path in package.rglob(f"*.{suffix}")
    }
    assert sorted(expected - names) == []
    assert "[pytest11]\ndetmode = detmode.testing.pytest_plugin" in points
    assert not {name for name in names if name.startswith(("tests", "docs", "tools"))}


@pytest.mark.thorough
def test_users_have_our_types(cache: pytest.Cache, tmp_path: Path) -> None:
    """Mypy knows the types of our names in a user's program, and sees every wrong use in it.

    Without our settings and from another folder: `tox -e types` checks the program with them.
    """
    pytest.importorskip("mypy", reason="mypy is not installed")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir"]
    command += [str(cache.mkdir("mypy")), str(ROOT / "tests" / "typed_program.py")]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (found.stdout, found.returncode) == ("Success: no issues found in 1 source file\n", 0)


def test_ci_calls_the_readmes_test_command() -> None:
    """A change lands when what a reader is told to run is green, and what that leaves out."""
    *_, command, more = (ROOT / ".ci" / "run").read_text().splitlines()
    assert command in (ROOT / "README.md").read_text().splitlines()
    assert more == ".venv/bin/tox -e thorough -- -m thorough"
