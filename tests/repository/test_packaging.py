"""The wheel, the README's commands and the types, as they are shipped."""

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import detmode
from tests.shared import ROOT


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
        for suffix in ("cpp", "cu", "cuh", "h", "py", "pyi", "typed", "html", "css", "js")
        for path in package.rglob(f"*.{suffix}")
    }
    assert sorted(expected - names) == []
    assert "[pytest11]\ndetmode = detmode.testing.pytest_plugin" in points
    assert not {name for name in names if name.startswith(("tests", "docs", "tools"))}


@pytest.mark.thorough
def test_clean_installation(tmp_path: Path) -> None:
    """The source distribution makes a wheel that works where nothing else of the checkout is.

    What it depends on is lent by this environment: ``tox -e wheel`` installs that as well.
    """
    builders = pytest.importorskip("hatchling.builders.sdist", reason="hatchling is not installed")
    (archive,) = builders.SdistBuilder(str(ROOT)).build(directory=str(tmp_path))
    with tarfile.open(archive) as content:
        files = {name.partition("/")[2] for name in content.getnames()}
    assert files >= {"CITATION.cff", "LICENSE", "SECURITY.md", "tests/conftest.py", "docs/conf.py"}
    assert not {name for name in files if name.startswith((".venv", ".tox", "docs/_build"))}

    folder = tmp_path / "clean"
    venv.create(folder, with_pip=True, symlinks=os.name != "nt")
    (packages,) = {Path(each) for each in folder.glob("**/site-packages")}
    # Files of paths in these folders are not read: an editable installation is not found.
    lent = [each for each in sys.path if each.endswith("site-packages")]
    (packages / "lent.pth").write_text("\n".join(lent))
    commands = folder / ("Scripts" if os.name == "nt" else "bin")
    python = str(commands / "python")

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}
        environment.pop("PYTHONPATH", None)
        return subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300
        )

    install = ("--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed")
    made = run(python, "-m", "pip", "install", *install, archive)
    assert made.returncode == 0, made.stderr
    program = (
        "import detmode, torch; print(detmode.__file__); "
        "torch.zeros(2).index_add(0, torch.tensor([1, 1]), torch.ones(2))"
    )
    ran = run(str(commands / "detmode"), "run", "--simulate", "cuda", "-c", program)
    assert (ran.returncode, Path(ran.stdout.strip())) == (0, packages / "detmode" / "__init__.py")
    assert "aten::index_add.default" in ran.stderr
    options = run(python, "-m", "pytest", "--rootdir", ".", "-c", os.devnull, "--help")
    assert "--detmode-baseline" in options.stdout, "the installed plugin is not found by pytest"


@pytest.mark.thorough
def test_users_have_our_types(cache: pytest.Cache, tmp_path: Path) -> None:
    """Mypy knows the types of our names in a user's program, and sees every wrong use in it.

    Without our settings and from another folder: `tox -e types` checks the program with them.
    """
    pytest.importorskip("mypy", reason="mypy is not installed")
    program = (ROOT / "tests" / "repository" / "typed_program.py").read_text(encoding="utf-8")
    assert [name for name in dir(detmode) if not re.search(rf"\b{name}\b", program)] == []
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir"]
    command += [str(cache.mkdir("mypy")), str(ROOT / "tests" / "repository" / "typed_program.py")]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (found.stdout, found.returncode) == ("Success: no issues found in 1 source file\n", 0)


def test_ci_calls_the_readmes_test_command() -> None:
    """A change lands when what a reader is told to run is green, and what that leaves out."""
    *_, command, left_out, cases = (ROOT / ".ci" / "run").read_text().splitlines()
    assert command in (ROOT / "README.md").read_text().splitlines()
    assert left_out == "DETMODE_PROFILE=thorough .venv/bin/tox -e tests -- -m thorough"
    assert cases.startswith('DETMODE_PROFILE=thorough .venv/bin/tox -e tests -- -m "not thorough" ')
