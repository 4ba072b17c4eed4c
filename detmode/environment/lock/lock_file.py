"""A lock as a file: TOML, sorted, one choice a line."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detmode.environment.known import Value
from detmode.process.files import FileError, read_file, replace_file

NAME = "detmode.lock"
FORMAT = 1
_MOST_BYTES = 1 << 22
_MOST_INTEGER = (1 << 64) - 1
_HEAD = """\
# Every choice that changes bits, as `detmode lock`, `detmode run --write-lock` or `detmode record`
# found it. `detmode run --locked` refuses to run with others.
"""

Section = Mapping[str, Value]


@dataclass(frozen=True)
class LockFile:
    """Choices that change bits.

    Args:
        sections: by the name of the section (``"versions"``), the choices by name.
    """

    sections: Mapping[str, Section]

    def without(self, section: str) -> LockFile:
        """Return a lock that lacks a section."""
        return LockFile(
            {name: content for name, content in self.sections.items() if name != section}
        )

    def to_toml(self) -> str:
        """Return the content of the file."""
        import tomli_w

        ordered = {
            name: dict(sorted(self.sections[name].items())) for name in sorted(self.sections)
        }
        return f"{_HEAD}{tomli_w.dumps({'format': FORMAT, **ordered})}"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all.

        Raises:
            FileError: it cannot be written.
        """
        try:
            replace_file(path, self.to_toml().encode())
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror}") from error

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> LockFile:
        """Read a file.

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
        return cls(_parsed(content, Path(path)))


def _parsed(content: bytes, path: Path) -> dict[str, Section]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document: dict[str, Any] = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
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
