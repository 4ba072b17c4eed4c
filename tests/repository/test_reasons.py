"""Whatever silences a check has its reason beside it."""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.shared import ROOT

FOLDERS = ("detmode", "tests", "benchmarks", "tools", "examples")
PRAGMA = re.compile(
    r"#\s*(noqa\b(:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*)?"
    r"|(type|mypy|ruff):\s*(ignore|disable|noqa)[\w-]*(\[[^]]*\])?|pragma:\s*no \w+)"
)
"""Comments by which ruff, mypy and coverage leave a line out."""
OF_INTEREST = re.compile(r'noqa|: ?ignore|"ignore|: disable|pragma: no|skip|xfail')
"""Found in every file that silences anything, and in few others."""
LEFT_OUT = re.compile(r"(pytest\.|unittest\.)?(mark\.)?(skip|skipif|xfail|importorskip)\w*")
IGNORED = re.compile(r"[\w.]*\b(filterwarnings|simplefilter)")


def comments_of(path: Path) -> dict[int, str]:
    """The comments of a file, by line."""
    with tokenize.open(path) as file:
        return {
            token.start[0]: token.string
            for token in tokenize.generate_tokens(file.readline)
            if token.type == tokenize.COMMENT
        }


def dotted(node: ast.expr) -> str:
    """A name with its attributes."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def silencers(tree: ast.AST) -> Iterator[ast.expr]:
    """The skips, expected failures and ignored warnings that have no ``reason`` themselves."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in called:
            if LEFT_OUT.fullmatch(dotted(node)):
                yield node
        elif isinstance(node, ast.Call):
            name, words = dotted(node.func), {each.arg: each.value for each in node.keywords}
            if LEFT_OUT.fullmatch(name):
                # The first argument of pytest.skip is its reason.
                if "reason" not in words and not (name == "pytest.skip" and node.args):
                    yield node
            elif IGNORED.fullmatch(name) and any(
                isinstance(each, ast.Constant) and str(each.value).startswith("ignore")
                for each in (*node.args, *words.values())
            ):
                yield node


def without_reason(path: Path) -> Iterator[int]:
    """The lines of a file that silence a check, with no word why at them or on the line before."""
    text = path.read_text(encoding="utf-8")
    if not OF_INTEREST.search(text):
        return
    silent = [(node.lineno, node.end_lineno or node.lineno) for node in silencers(ast.parse(text))]
    if not silent and not PRAGMA.search(text):
        return  # to find the comments takes longest
    comments = comments_of(path)
    reasons = {line for line, each in comments.items() if re.search(r"\w", PRAGMA.sub("", each))}
    silent += [(line, line) for line, each in comments.items() if PRAGMA.search(each)]
    for first, last in silent:
        if reasons.isdisjoint(range(first - 1, last + 1)):
            yield first


def test_reasons():
    """No skip, expected failure, ignored warning or comment to a linter is without its reason."""
    bare = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in without_reason(path)
    ]
    assert not bare, "say why at the line or before it, or mend what is hidden:\n" + "\n".join(bare)
