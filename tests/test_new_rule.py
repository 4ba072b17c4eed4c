"""A family made from the template passes the tests over the table once its blanks are filled."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import needs
import pytest

ROOT = Path(__file__).parent.parent

# A family for an operator that no rule lists: what its author would write for the blanks.
FILLED = {
    "aten::TODO": "aten::neg",
    "alert=None,  # TODO: the caller name in PyTorch's message, if it alerts": "alert=None,",
    "(value);  // TODO: the operator": "(-value);",
    "TODO: what the family covers, on one line.": "Negation.",
    "TODO: where people meet these operators.": "It serves as an example.",
    "  # TODO: the operator's arguments, by the schema's names": "",
    "  # TODO: the other arguments": "",
}


def fill(family: Path) -> None:
    for path in family.iterdir():
        text = path.read_text()
        for blank, words in FILLED.items():
            text = text.replace(blank, words)
        lines = text.replace(" TODO\n", "\n").replace("TODO: ", "said: ").splitlines()
        path.write_text("\n".join(lines) + "\n")
        assert "TODO" not in path.read_text(), path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the tests over the table need."""
    skip = shutil.ignore_patterns("__pycache__", "_build")
    for name in ("detmode", "tests", "tools", "docs", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def python(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=500,
    )


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            (),
            id="kernels",
            marks=needs.compiler,
        ),
        pytest.param(("--no-kernels",), id="rows_only"),
    ],
)
def test_new_family(tree: Path, options: tuple[str, ...]) -> None:
    """The form tests accept the filled family, and its kernel gives ATen's result."""
    made = python(tree, "tools/new_rule.py", "negation", *options)
    assert made.returncode == 0, made.stderr
    fill(tree / "detmode" / "rules" / "negation")
    written = python(tree, "tools/generate_docs.py")
    assert written.returncode == 0, written.stderr
    # The tree has no git and no environment of its own: only what walks the families is run.
    tested = python(
        *(tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--family", "negation"),
        "tests/rules",
    )
    assert tested.returncode == 0, tested.stdout[-4000:] + tested.stderr[-2000:]


@pytest.mark.parametrize("name", ["Upper", "1st", "with-dash", "upsample"])
def test_impossible_names_are_refused(tree: Path, name: str) -> None:
    """One line, exit code 2, and nothing is written."""
    before = sorted(tree.rglob("*"))
    made = python(tree, "tools/new_rule.py", name)
    assert made.returncode == 2
    assert len(made.stderr.splitlines()) == 1
    assert sorted(path for path in tree.rglob("*") if "__pycache__" not in path.parts) == before
