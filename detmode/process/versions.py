"""PyTorch's versions: the supported range, and parsing."""

from __future__ import annotations

import re

SUPPORTED = ((2, 8), (2, 15))
"""The oldest and the newest PyTorch that the rule table was checked against."""

VERSIONS = " to ".join(f"{major}.{minor}" for major, minor in SUPPORTED)
"""``SUPPORTED`` as text."""


def parse_version(version: str) -> tuple[int, int]:
    """Parse ``"2.13.0+cpu"`` as ``(2, 13)``.

    Raises:
        ValueError: the text does not begin with ``major.minor``.
    """
    match = re.match(r"(\d+)\.(\d+)(?![^.+])", version)
    if match is None:
        raise ValueError(f"not a PyTorch version: {version!r}; give it as '2.13'")
    return int(match[1]), int(match[2])


def version_range(since: str | None, until: str | None) -> str:
    """Return ``"2.8 to 2.10"``, ``"2.11 and newer"``, ``"2.10 and older"``, or ""."""
    if since and until:
        return f"{since} to {until}"
    if since:
        return f"{since} and newer"
    return f"{until} and older" if until else ""
