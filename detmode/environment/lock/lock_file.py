"""A lock as a file: TOML, sorted, one choice a line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from detmode.environment.known import Choice
from detmode.process.files import FileError, parsed_toml, read_file, replace_file

NAME = "detmode.lock"
FORMAT = 1
_MOST_BYTES = 1 << 22
_MOST_INTEGER = (1 << 64) - 1
_HEAD = """\
# Every choice that changes bits, as `detmode lock`, `detmode run --write-lock` or `detmode record`
# found it. `detmode run --locked` refuses to run with others.
"""

Section: TypeAlias = Mapping[str, Choice]
Sections: TypeAlias = Mapping[str, Section]
"""A lock: by the name of the section (``"versions"``), the choices that change bits by name."""


def without(sections: Sections, name: str) -> Sections:
    """Return a lock that lacks a section."""
    return {title: sections[title] for title in sections if title != name}


def _to_toml(sections: Sections) -> str:
    import tomli_w

    ordered = {name: dict(sorted(sections[name].items())) for name in sorted(sections)}
    return f"{_HEAD}{tomli_w.dumps({'format': FORMAT, **ordered})}"


def write(sections: Sections, path: str | os.PathLike[str]) -> None:
    """Write a lock, whole or not at all.

    Raises:
        FileError: it cannot be written.
    """
    try:
        replace_file(path, _to_toml(sections).encode())
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from error


def read(path: str | os.PathLike[str]) -> Sections:
    """Read a lock.

    Raises:
        FileError: there is none, or it is not a lock.
    """
    try:
        content = read_file(path, _MOST_BYTES)
    except OSError as error:
        raise FileError(
            f"cannot read the lock {path}: {error.strerror}; write one with "
            "'detmode run --write-lock' or 'detmode lock'"
        ) from error
    except ValueError as error:
        raise FileError(f"{path} is not a lock: {error}") from None
    return _parsed(content, Path(path))


def _parsed(content: bytes, path: Path) -> Sections:
    try:
        document = parsed_toml(content.decode())
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise FileError(f"{path} is not a lock, which is TOML: {reason!r}") from None
    form = document.pop("format", None)
    if type(form) is not int or form != FORMAT:
        raise FileError(
            f"{path} is not a lock of format {FORMAT}, which this detmode reads; write it again"
        )
    for name, section in document.items():
        if not isinstance(section, dict) or not all(map(_is_value, section.values())):
            raise FileError(f"{path} is not a lock: {name!r} is not a table of choices")
    return document


def _is_value(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    if isinstance(value, int):
        return -_MOST_INTEGER <= value <= _MOST_INTEGER  # a longer one may have no text
    return isinstance(value, (float, str))
