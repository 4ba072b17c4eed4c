"""The origin of one call, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

_PACKAGES = re.compile(r".*?[/\\](?:site|dist)-packages[/\\]")


def installed_part(file: str) -> str | None:
    """The path of a file below the folder that packages are installed in; else ``None``."""
    match = _PACKAGES.match(file)
    return None if match is None else file[match.end() :]


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the user's code.

    Args:
        text: "file:line", or whatever is known instead.
        file: the file, for Python's warnings, like ``line`` and ``python_module``.
        line: the line, counted from 1.
        python_module: the Python module that contains the line.
    """

    text: str
    file: str | None = None
    line: int = 0
    python_module: str | None = None


class CallSite(NamedTuple):
    """The origin of one call: its line, and the ``nn.Module`` path of this call."""

    site: Site
    module: str | None


@dataclass(frozen=True, slots=True)
class Note:
    """The facts remembered about the forward call that made an autograd node.

    Args:
        site: the line that made it.
        names: all names of its operator.
        allowed: the patterns of the allow regions around it.
    """

    site: CallSite
    names: tuple[str, ...]
    allowed: tuple[tuple[str, ...], ...]
