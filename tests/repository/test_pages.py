"""Pages name what there is: options of the commands, files, environments of tox."""

import configparser
import re
from inspect import ismodule

import pytest
import take_pictures

import detmode
from detmode.cli.parser import _parsers
from tests.shared import ROOT

# The list of changes names files that were.
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
# In MyST, and in HTML where GitHub shows the page; each with a text for who does not see it.
PICTURE = re.compile(
    r"\{image\} (?:\.\./)?_static/(\S+\.png)\n:alt: .+\n:class: only-|"
    r'(?:srcset|<img src)="docs/_static/(\S+\.png)"(?=>\n  <img| alt=".+">)'
)
FILE = re.compile(r"(?<![\w/.-])(?:detmode|tests|tools|docs|benchmarks|examples)/[\w./-]*\w\.\w+")
_, COMMANDS = _parsers()


@pytest.mark.parametrize("command", COMMANDS)
def test_options(command):
    """The section of a command has its options, and no others."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## detmode {command}\n")[2].partition("\n## ")[0]
    written = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*(?:=warn)?", section))
    options = [set(each.option_strings) for each in COMMANDS[command]._actions]
    # Help is every command's; how a module or code is named is said once.
    said = {"-h"} if command == "run" else {"-h", "-m", "-c"}
    missing = [names for names in options if names and not names & (written | said)]
    assert (missing, written - set().union(*options)) == ([], set())


def test_files():
    """Every file that a page names is there."""
    gone = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in FILE.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    ]
    assert not gone, "\n".join(gone)


def test_environments():
    """The table of CONTRIBUTING.md has all environments of tox."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    names = {re.split("[:-]", each)[1] for each in tox.sections() if ":" in each}
    listed = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert names == set(re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE))


def test_pictures():
    """The tool takes each picture, and a page shows it, in both schemes; all are small."""
    files = {path.name: path.stat().st_size for path in take_pictures.STATIC.iterdir()}
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = {"".join(names) for names in PICTURE.findall(text)}
    taken = {f"{name}-{scheme}.png" for name in take_pictures.NAMES for scheme in ("light", "dark")}
    assert {name for name in files if name.endswith(".png")} == taken == shown
    assert len(re.findall(r"_static/\S+\.png", text)) == len(PICTURE.findall(text))
    assert max(files.values()) < 60_000
    assert sum(files.values()) < 1_000_000


def test_variables():
    """The page of environment variables has each that a user of detmode may set."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "detmode").rglob("*.py"))
    named = {name for text in sources for name in re.findall(r"['\"](DETMODE_[A-Z_]+)['\"]", text)}
    page = (ROOT / "docs" / "environment-variables.md").read_text(encoding="utf-8")
    # Those of the host runner's builds are for developers.
    users = {name for name in named if not name.startswith("DETMODE_HOST_")}
    assert len(users) > 3
    assert users == {name for name in users if f"| `{name}` |" in page}


def test_interface():
    """The summary of the Python interface has every public name of the package."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    summary = set(re.findall(r"^   detmode\.(\w+)$", page, re.MULTILINE))
    names = {name for name in detmode.__all__ if not ismodule(getattr(detmode, name))}
    # Guarantees are values of one enumeration, which the summary has.
    assert names - {"GPU_TO_GPU", "RUN_TO_RUN"} == summary
