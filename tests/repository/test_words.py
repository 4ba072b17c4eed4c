"""The language of the package: docstrings begin with what they state, in plain English."""

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
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
    blocks: list[object] = [ast.parse(path.read_text(encoding="utf-8")).body]
    while blocks:
        block = blocks.pop()
        for statement in block if isinstance(block, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield statement.lineno, inspect.cleandoc(str(statement.value.value))
            inner = ("body", "orelse", "finalbody", "handlers", "cases")
            blocks += [getattr(statement, name, None) for name in inner]


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


VAGUE = {"each": 0, "found": 1, "given": 0, "kept": 0, "made": 0, "other": 0, "own": 0}
"""Names that say nothing of what a thing is, and how often the package assigns each.

One is public: what :func:`detmode.warm` has ``found``. The numbers only shrink.
"""


@cache
def names_of(path: Path) -> tuple[Counter[str], set[str]]:
    """Names of variables and parameters, with their numbers; and those of functions and classes.

    A method of Python's, as ``__eq__``, names its own.
    """
    assigned, defined, of_python = Counter[str](), set[str](), set[int]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
            if isinstance(node, ast.FunctionDef) and node.name.startswith("__"):
                of_python |= {id(argument) for argument in node.args.args}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            assigned[node.id] += 1
        elif isinstance(node, ast.arg) and id(node) not in of_python:
            assigned[node.arg] += 1
    return assigned, defined


def test_names_say_what_a_thing_is():
    """The package assigns no more vague names than the list has, and the list no more than it."""
    names = sum((names_of(path)[0] for path in PACKAGE.rglob("*.py")), Counter())
    assert {name: names[name] for name in VAGUE} == VAGUE, "lower the number that shrank"


def test_identifiers_are_plain():
    """No name that the package defines has a word of the list of banned ones."""
    banned = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in PACKAGE.rglob("*.py")
        for name in set().union(*names_of(path))
        if BANNED.search(name.replace("_", " "))
    ]
    assert not banned, "say it in plain English:\n" + "\n".join(sorted(banned))
