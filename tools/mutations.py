"""The grammar by which ``tools/mutate.py`` breaks a source: small operators over Python and CUDA.

Python is read as ``ast`` sees it, so that a condition is one whole however it is written; CUDA is
read as text, without its comments and strings. No library is used for it: those for Python break
the working tree itself or wrap each function, which changes the frames that detmode looks at; one
by text alone breaks docstrings; and none knows CUDA.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Mutant:
    """A stretch of a file, and the text that takes its place.

    Args:
        file: relative to the project's root.
        start: the offset of the stretch in the file's text.
        old: the stretch.
        new: the text that takes its place.
        operator: the operator that made it; ``"kept"`` if it was made by hand.
        tests: arguments of pytest; none for those of the file's module.
        line: the number of the line of the stretch.
    """

    file: str
    start: int
    old: str
    new: str
    operator: str
    tests: tuple[str, ...] = ()
    line: int = 0

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file}:{self.line}: {self.operator}: {old} -> {new or '(nothing)'}"

    def apply(self, text: str) -> str:
        """The file's text with the mutant in it."""
        end = self.start + len(self.old)
        assert text[self.start : end] == self.old
        return text[: self.start] + self.new + text[end:]


# A stretch of text by its two ends, what takes its place, and by which operator.
Change = tuple[int, int, str, str]


def mutants_of(file: str, text: str, lines: frozenset[int] | None = None) -> list[Mutant]:
    """Every mutant that the grammar makes of a file, in the order of its text.

    Args:
        file: relative to the project's root.
        text: its content.
        lines: the numbers of the lines to break; None for all.
    """
    changes = python_changes(text) if PurePosixPath(file).suffix == ".py" else cuda_changes(text)
    every = (
        Mutant(file, start, text[start:end], new, operator, (), text.count("\n", 0, start) + 1)
        for start, end, new, operator in sorted(set(changes))
    )
    return [each for each in every if lines is None or each.line in lines]


_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_JOINED: dict[type[ast.AST], tuple[str, str]] = {
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
}
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_TEXTS = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)


class _Python:
    """One Python source: where its nodes are, and what each operator makes of them."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]
        self.lines = text.splitlines()

    def _offset(self, line: int, column: int) -> int:
        # Columns count bytes.
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        first = self._offset(node.lineno, node.col_offset)
        return first, self._offset(node.end_lineno, node.end_col_offset)

    def put(self, node: ast.AST, new: str, operator: str) -> Change:
        return (*self.span(node), new, operator)

    def source(self, node: ast.AST) -> str:
        first, last = self.span(node)
        return self.text[first:last]

    def between(
        self, left: ast.AST, right: ast.AST, words: tuple[str, str], operator: str
    ) -> Change:
        """Change of the word between two nodes, beside which there may be parentheses."""
        first, last = self.span(left)[1], self.span(right)[0]
        old = r"\s+".join(map(re.escape, words[0].split()))
        found = re.search(rf"(?<![\w<>=!]){old}(?![\w=])", self.text[first:last])
        assert found is not None
        return first + found.start(), first + found.end(), words[1], operator

    def changes(self, node: ast.AST) -> Iterator[Change]:
        tests = [getattr(node, "test", None), *getattr(node, "ifs", ())]
        for test in (each for each in tests if each is not None):
            yield self.put(test, f"(not ({self.source(test)}))", "negate a condition")
        yield from self._of_expressions(node)
        yield from self._of_statements(node)

    def _of_expressions(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.Compare():
                sides = (node.left, *node.comparators)
                for op, left, right in zip(node.ops, sides, sides[1:]):
                    words = _COMPARED[type(op)]
                    yield self.between(left, right, words, "change a comparison")
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:]):
                    yield self.between(left, right, _JOINED[type(node.op)], "swap and, or")
            case ast.BinOp(op=ast.Add() | ast.Sub()) if not self._joins_texts(node):
                yield self.between(node.left, node.right, _JOINED[type(node.op)], "swap a sign")
            case ast.UnaryOp(op=ast.Not()):
                yield self.put(node, f"({self.source(node.operand)})", "drop a not")
            case ast.Call(func=ast.Name(id=name)) if name in _SWAPPED:
                yield self.put(node.func, _SWAPPED[name], "swap min, max")
            case ast.Constant(value=bool()):
                yield self.put(node, str(not node.value), "change a constant")
            case ast.Constant(value=int()):
                yield self.put(node, str(node.value + 1), "change a constant")

    def _joins_texts(self, node: ast.BinOp) -> bool:
        return any(
            isinstance(side, _TEXTS)
            or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
            for side in (node.left, node.right)
        )

    def _of_statements(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete() | ast.Raise():
                yield self.put(node, "pass", "drop a statement")
            case ast.Continue() | ast.Break():
                yield self.put(node, "pass", "drop a statement")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
                yield self.put(node, "pass", "drop a statement")
            case ast.FunctionDef() if (first := _first_statement(node)) is not None:
                yield self.put(first, "return", "return early")


def _first_statement(node: ast.FunctionDef) -> ast.stmt | None:
    """The first statement of a function that has others, unless it defines something."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    defines = isinstance(body[0], ast.FunctionDef | ast.ClassDef) if body else True
    return None if defines or len(body) < 2 else body[0]


def _is_typing(node: ast.AST) -> bool:
    test = getattr(node, "test", None)
    return isinstance(node, ast.If) and isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run: no annotations, no texts (whose parts have no places of their own)."""
    yield node
    for name, value in ast.iter_fields(node):
        below = value if isinstance(value, list) else [value]
        if name in ("annotation", "returns") or isinstance(node, ast.JoinedStr):
            continue
        yield from chain.from_iterable(
            _nodes(each) for each in below if isinstance(each, ast.AST) and not _is_typing(each)
        )


def python_changes(text: str) -> Iterator[Change]:
    """Everything that the operators make of a Python source."""
    source = _Python(text)
    return chain.from_iterable(source.changes(node) for node in _nodes(ast.parse(text)))


_OPPOSITES = {
    **{" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == "},
    **{" && ": " || ", " || ": " && ", " + ": " - ", " - ": " + "},
    **{"min": "max", "max": "min", "true": "false", "false": "true"},
}


def _drop(found: re.Match[str]) -> str:
    return ""


# To what is there: a declaration has a type before its name.
_ASSIGNMENT = r"[\w.\->\[\]*]+ [-+*/|&^]?= [^;{}\n]+"
_CALL = r"[\w.:]+\([^;{}\n]*\)"

# Of clang-format's text: an operator of two sides has a space before and behind it.
_CUDA: tuple[tuple[str, str, Callable[[re.Match[str]], str]], ...] = (
    ("drop a barrier", r"__sync(?:threads|warp)\(\);", _drop),
    ("swap an index", r"(?<=(?:Idx|Dim)\.)x\b", lambda found: "y"),
    ("swap an index", r"(?<=[\w\])])\[[a-z]\w*\]", lambda found: "[0]"),
    ("change a comparison", r" (?:<|<=|>|>=|==|!=) ", lambda found: _OPPOSITES[found[0]]),
    ("swap and, or", r" (?:&&|\|\|) ", lambda found: _OPPOSITES[found[0]]),
    ("swap a sign", r" [+-] ", lambda found: _OPPOSITES[found[0]]),
    ("swap min, max", r"\b(?:min|max)(?=\()", lambda found: _OPPOSITES[found[0]]),
    ("drop a not", r"(?<=[ (])!(?=[\w(])", _drop),
    ("change a constant", r"(?<![\w.<])\d+(?![\w.>])", lambda found: str(int(found[0]) + 1)),
    ("change a constant", r"\b(?:true|false)\b", lambda found: _OPPOSITES[found[0]]),
    (
        "drop a statement",
        rf"(?<=[;{{}}]\n) +(?:{_ASSIGNMENT}|{_CALL}|continue|break|return);",
        _drop,
    ),
)


def cuda_changes(text: str) -> Iterator[Change]:
    """Everything that the operators make of a CUDA source."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/|\"[^\"\n]*\"|^ *#[^\n]*", _blank, text, flags=re.S | re.M)
    for operator, pattern, new in _CUDA:
        for found in re.finditer(pattern, code):
            yield found.start(), found.end(), new(found), operator
    for found in re.finditer(r"\bif \(", code):
        end = closing(code, found.end())
        condition = code[found.end() : end]
        yield found.end(), end, f"!({condition})", "negate a condition"


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def closing(text: str, start: int, pair: str = "()") -> int:
    """The place of the bracket that closes the one before ``start``."""
    depth = 1
    for place in range(start, len(text)):
        depth += (text[place] == pair[0]) - (text[place] == pair[1])
        if depth == 0:
            return place
    raise ValueError(f"{pair[0]} is not closed")
