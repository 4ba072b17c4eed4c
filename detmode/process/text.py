"""Texts of others, made printable: names and values that files, programs and variables have."""

from __future__ import annotations

import re
from typing import Any

_LONE_SURROGATES = "\ud800-\udc7f\udd00-\udfff"
_CONTROL = "\x00-\x1f\x7f-\x9f"
_LINES_AND_DIRECTIONS = "\u2028\u2029\u202a-\u202e\u2066-\u2069"
_UNWRITABLE = re.compile(f"[{_LONE_SURROGATES}]")
_NOT_IN_A_LINE = re.compile(f"[{_CONTROL}{_LINES_AND_DIRECTIONS}{_LONE_SURROGATES}]")


def writable(text: str) -> str:
    """The text, with escapes for surrogates that stand for nothing.

    Those that stand for the bytes of a file's name stay: they are written as these.
    """
    return _UNWRITABLE.sub(_escape, text)


def in_a_line(text: str) -> str:
    """The text, with escapes for control characters too.

    They could steer a terminal, or begin a line that a service such as GitHub takes for a command.
    """
    return _NOT_IN_A_LINE.sub(_escape, text)


def text_of(value: Any) -> str:
    """Return a text that a file has, printable.

    Raises:
        TypeError: ``value`` is not a text.
    """
    if not isinstance(value, str):
        raise TypeError(f"not a text but {type(value).__name__}")
    return in_a_line(value)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
