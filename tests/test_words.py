"""The language of the package: docstrings begin with what they state, in plain English."""

import ast
import re
from pathlib import Path

import detmode

PACKAGE = Path(detmode.__file__).parent
ROOT = PACKAGE.parent
QUESTIONS = ("What", "Whether", "How", "Why", "That")
BANNED = re.compile(
    r"\b(lest|lets? (them |it )?pass|runs? parts?|part here|was met|looks? on|(is|are) told"
    r"|kin|strangers?|natively|somebody|whence|thereof|from run to run)\b",
    re.IGNORECASE,
)
"""Archaic or private words; PyTorch, Python and CUDA programmers have common ones for each."""
SOURCES = [
    path for path in sorted(PACKAGE.rglob("*")) if path.suffix in (".py", ".cu", ".cuh", ".h")
]
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("*.md"))]


def test_docstrings_state():
    """No docstring begins like an indirect question; a verb or a noun says what a thing does."""
    asking = [
        f"{path.relative_to(ROOT)}:{node.body[0].lineno}: {text.partition(chr(10))[0]}"
        for path in SOURCES
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and (text := ast.get_docstring(node)) is not None
        and text.startswith(tuple(f"{word} " for word in QUESTIONS))
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
