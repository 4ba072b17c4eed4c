"""The steps of a run that are recorded: a range, as ``--steps`` names it."""

from __future__ import annotations

import re
import sys

ALL = range(sys.maxsize)


def steps_of(text: str | None) -> range:
    """Parse ``"57:60"``, which is 57, 58 and 59; either number may be missing. All for ``None``.

    Raises:
        TypeError: it is not a text.
        ValueError: it is not such a text, or there are no steps between the two.
    """
    if text is None:
        return ALL
    if not isinstance(text, str):
        raise TypeError(f"steps must be a text such as '57:60', got {type(text).__name__}")
    match = re.fullmatch(r"(\d*):(\d*)", text)
    steps = range(int(match[1] or 0), int(match[2] or ALL.stop)) if match else range(0)
    if not steps:
        raise ValueError(
            f"steps {text!r}: give them as BEGIN:END, counted from 0, without END, e.g. 57:58"
        )
    return steps


def as_text(steps: range) -> str:
    """Return the text that :func:`steps_of` parses."""
    return f"{steps.start}:{'' if steps.stop == ALL.stop else steps.stop}"
