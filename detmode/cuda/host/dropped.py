"""The atomics of a foreign source whose result nobody reads.

Blocks that add integers to one place leave the same memory in any order, unless one of them looks
at what its addition returns, as at a ticket. In C++ an operation cannot tell whether its caller
does, so the calls that are statements of their own are found in the text.
"""

from __future__ import annotations

import re
from itertools import pairwise

_NAME = r"(atomic(?:Add|Sub|Min|Max|And|Or|Xor))(?:_block|_system)?"
_ATOMIC = re.compile(_NAME)
_TOKEN = re.compile(
    r"""
      (?P<skip> \s+
              | ^[ \t]*\#(?:\\\n|[^\n])*      # a directive, with the lines that continue it
              | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*')
    | \d(?:'?[\w.])*
    | \w+
    | .
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_CLOSING = {")": "(", "]": "[", "}": "{"}
_CONDITIONS = frozenset({"if", "for", "while", "constexpr"})
_BEFORE_STATEMENTS = frozenset({";", "{", "}", "else", "do"})
_BEFORE_CALLS = frozenset({"else", "do", "return"})
_DEFINED = re.compile(rf"^[ \t]*#[ \t]*define[ \t]+{_NAME}\b", re.MULTILINE)


def with_dropped_results(text: str) -> str:
    """Return a source whose statements that only call an atomic call its form without a result.

    A call that may be anything else, as in a macro or a parenthesis, stays. Its result counts as
    read, which claims less and is never wrong.

    Args:
        text: without comments.
    """
    tokens = [token for token in _TOKEN.finditer(text) if token["skip"] is None]
    words = [token[0] for token in tokens]
    declared = _declared(text, words)
    opened: list[int] = []
    opener: dict[int, int] = {}
    dropped: list[int] = []
    for position, word in enumerate(words):
        if word in _CLOSING.values():
            opened.append(position)
        elif word in _CLOSING:
            if not opened or words[opened[-1]] != _CLOSING[word]:
                return text  # a macro has the other one
            opener[position] = begin = opened.pop()
            name = _ATOMIC.fullmatch(words[begin - 1])
            if (
                name
                and name[1] not in declared
                and word == ")"
                and words[position + 1 : position + 2] == [";"]
                and all(words[brace] == "{" for brace in opened)
                and _begins_statement(words, begin - 1, opener)
                # A branch of the preprocessor may have the beginning.
                and "#" not in text[tokens[begin - 2].end() : tokens[begin - 1].start()]
            ):
                dropped.append(begin - 1)
    for call in reversed(dropped):
        name = _ATOMIC.fullmatch(words[call])
        assert name is not None
        start, end = tokens[call].span()
        text = f"{text[:start]}{name[1]}_dropped{text[end:]}"
    return text


def _declared(text: str, words: list[str]) -> set[str]:
    """Return the atomics that the source may declare itself; of these it knows what they do."""
    names = {define[1] for define in _DEFINED.finditer(text)}
    for position, (before, word) in enumerate(pairwise(words), start=1):
        # The end of a type; that of an expression is taken for one.
        is_type = before in (">", "&", "*") or (
            before.isidentifier() and before not in _BEFORE_CALLS
        )
        if is_type and (name := _ATOMIC.fullmatch(word)) and not _is_compared(words, position):
            names.add(name[1])
    return names


def _is_compared(words: list[str], position: int) -> bool:
    """Return whether the call of a name is compared at once, as a ticket is: no declaration is."""
    depth = 0
    for closing in range(position + 1, len(words)):
        depth += (words[closing] == "(") - (words[closing] == ")")
        if depth == 0:
            comparison = words[closing + 1 : closing + 3]
            return closing > position + 1 and comparison in (["=", "="], ["!", "="])
    return False


def _begins_statement(words: list[str], position: int, opener: dict[int, int]) -> bool:
    """Return whether the word at a position, which is not the first, is the first of a statement.

    Args:
        words: all of the text.
        position: of the word.
        opener: for the position of a closing bracket, that of the opening one.
    """
    before = words[position - 1]
    if before == ")":
        # Others belong to a cast, or to a macro.
        return words[opener[position - 1] - 1] in _CONDITIONS
    return before in _BEFORE_STATEMENTS
