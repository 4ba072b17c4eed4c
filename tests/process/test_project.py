"""The options that a project chooses: ``[tool.detmode]`` in ``pyproject.toml``."""

from pathlib import Path

import pytest

from detmode.process.files import FileError
from detmode.process.project import as_words, defaults_for

TABLE = """
[tool.detmode]
warn-only = true
strict = false
override = ["aten::histc=allow", "torchvision::*=warn"]
recheck = 0.5
"""
KNOWN = {"--warn-only", "--strict", "--override", "--recheck"}


def test_the_nearest_project(tmp_path: Path) -> None:
    """A folder has the options of the nearest file above it; one without the table has none."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(TABLE)
    assert defaults_for(tmp_path / "a" / "b")["recheck"] == 0.5
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'a'\n")
    assert defaults_for(tmp_path / "a" / "b") == {}
    (tmp_path / "a" / "pyproject.toml").write_bytes(b"\xff")
    assert defaults_for(tmp_path / "a" / "b") == {}


def test_options_as_they_are_typed(tmp_path: Path) -> None:
    """An option is left out that a command does not know, or that contradicts a typed one."""
    (tmp_path / "pyproject.toml").write_text(TABLE)
    project = defaults_for(tmp_path)
    overrides = ["--override=aten::histc=allow", "--override=torchvision::*=warn"]
    assert as_words(project, KNOWN, ()) == ["--warn-only", *overrides, "--recheck=0.5"]
    assert as_words(project, KNOWN - {"--recheck"}, {"--strict"}) == overrides


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("wanr-only = true", r"no option 'wanr-only'; did you mean 'warn-only'\?"),
        ("colour = 1", "no option 'colour'; there are warn-only, strict"),
        ("strict = 'yes'", "strict: str in place of bool"),
        ("override = 'a=b'", "override: str in place of list"),
        ("recheck = = 1", "is no TOML"),
        (f"recheck = {'[' * 9999}", "is no TOML: it is nested too deeply"),
    ],
)
def test_wrong_tables(line: str, words: str, tmp_path: Path) -> None:
    """An error names the file, what is wrong, and what there is."""
    (tmp_path / "pyproject.toml").write_text(f"[tool.detmode]\n{line}\n")
    with pytest.raises(FileError, match=words) as raised:
        defaults_for(tmp_path)
    assert str(tmp_path / "pyproject.toml") in str(raised.value)
