"""The origin of one call, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


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
