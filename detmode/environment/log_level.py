"""The level that ``DETMODE_LOG`` names."""

from __future__ import annotations

import logging
import os


def from_environment() -> int | None:
    """The level for the logger ``detmode``; ``None`` where the variable is empty or not set.

    Raises:
        ValueError: the variable names no level.
    """
    value = os.environ.get("DETMODE_LOG")
    if not value:
        return None
    level = logging.getLevelName(value.upper())
    if not isinstance(level, int):
        raise ValueError(
            f"DETMODE_LOG={value!r} is no level; give debug, info, warning, error or critical"
        )
    return level
