"""The language of the package: docstrings begin with what they state, in plain English."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import detmode

PACKAGE = Path(detmode.__file__).parent
ROOT = PACKAGE.parent
QUESTION = re.compile(
    r"\A(What|Whether|How|Why|That|Where)\b.*|^ {4}[\w*, ]+( \(.*?\))?: (what|how|why|where)\b.*",
    re.MULTILINE,
)
BANNED = re.compile(
    r"\b(lest|lets? (them |it )?pass|runs? parts?|part here|was met|looks? on|(is|are) told"
    r"|kin|strangers?|natively|somebody|whence|thereof|from run to run)\b",
    re.IGNORECASE,
)
"""Archaic or private words; PyTorch, Python and CUDA programmers have common ones for each."""
SOURCES = [
    path for path in sorted(PACKAGE.rglob("*")) if path.suffix in (".py", ".cu", ".cuh", ".h")
]
FOLDERS = (PACKAGE, *(ROOT / name for name in ("tests", "benchmarks", "tools", "examples")))
PYTHON = [path for folder in FOLDERS for path in sorted(folder.rglob("*.py"))]
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("*.md"))]


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings of modules, classes and functions, and of what is assigned before one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                yield each.lineno, inspect.cleandoc(str(each.value.value))


def test_docstrings_state():
    """No docstring, nor its text on an argument, begins like an indirect question.

    A verb or a noun says what a thing does or is. A flag's text may say "whether ...".
    """
    asking = [
        f"{path.relative_to(ROOT)}:{first}: {match[0]}"
        for path in PYTHON
        for first, text in docstrings(path)
        for match in QUESTION.finditer(text)
    ]
    assert not asking, "begin with a verb or a noun:\n" + "\n".join(asking)


def test_words_are_plain():
    """Neither pages nor sources, messages among them, have a word of the list."""
    assert PAGES, "run from a checkout, which has the pages"
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in (*SOURCES, *PAGES)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        for match in BANNED.finditer(line)
    ]
    assert not found, "say it in plain English:\n" + "\n".join(found)
