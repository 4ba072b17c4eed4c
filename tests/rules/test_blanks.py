"""Nothing of the template is left blank."""

import re
from pathlib import Path

import pytest

from detmode.rules import families

FILES = [
    pytest.param(path, id=f"{name}-{path.name}")
    for name, family in families().items()
    for path in sorted(Path(family.__path__[0]).iterdir())
    if path.is_file()
]


@pytest.mark.parametrize("path", FILES)
def test_no_blank_is_left(path: Path) -> None:
    """What tools/new_rule.py marks TODO is for the family's author to fill in."""
    lines = path.read_text(encoding="utf-8").splitlines()
    blank = [number for number, line in enumerate(lines, start=1) if re.search(r"\bTODO\b", line)]
    assert blank == [], f"{path.parent.name}/{path.name}: fill in lines {blank}"
