"""The logger ``detmode``, as ``DETMODE_LOG`` and ``DETMODE_LOG_FORMAT`` ask for it."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress

FIELDS = (
    *("call", "overload", "action", "family", "guarantee"),
    *("site", "nn_module", "shapes", "reason"),
)
"""Names in ``extra`` of a call's line; ``module`` is a name of :mod:`logging` itself."""


_TEXT = logging.Formatter("detmode %(levelname)s: %(message)s")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        head = {
            "time": record.created,
            "level": record.levelname,
            "message": record.getMessage(),
        }
        fields = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if fields:
            fields["module"] = fields.pop("nn_module")
        return json.dumps({**head, **fields})


def level() -> int | None:
    """The level that ``DETMODE_LOG`` names; ``None`` where it is empty or not set.

    Raises:
        ValueError: it names no level.
    """
    value = os.environ.get("DETMODE_LOG")
    if not value:
        return None
    number = logging.getLevelName(value.upper())
    if not isinstance(number, int):
        raise ValueError(
            f"DETMODE_LOG={value!r} is no level; give debug, info, warning, error or critical"
        )
    return number


def formatter() -> logging.Formatter:
    """The form that ``DETMODE_LOG_FORMAT`` names: text, or JSON lines.

    Raises:
        ValueError: it names no form.
    """
    value = os.environ.get("DETMODE_LOG_FORMAT") or "text"
    if value not in ("text", "json"):
        raise ValueError(f"DETMODE_LOG_FORMAT={value!r} is no format; give text or json")
    return _JsonLines() if value == "json" else _TEXT


def configure() -> None:
    """Set the logger up once; the command line tells of a wrong value, which ends no program."""
    logger = logging.getLogger("detmode")
    # A warning is given through Python's warnings; without a handler logging would print it again.
    logger.addHandler(logging.NullHandler())
    with suppress(ValueError):
        wanted = level()
        if wanted is not None:
            handler = logging.StreamHandler()
            handler.setFormatter(_TEXT)
            logger.addHandler(handler)
            logger.setLevel(wanted)
            handler.setFormatter(formatter())
