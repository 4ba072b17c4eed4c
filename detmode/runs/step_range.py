"""A range of a run's steps."""

from __future__ import annotations

import re
from typing import NamedTuple


class StepRange(NamedTuple):
    """Steps of a run, counted from 0: from ``begin``, up to and without ``end``."""

    begin: int = 0
    end: int | None = None

    @classmethod
    def of(cls, text: str | None) -> StepRange:
        """Parse ``"57:60"``; either number may be missing. All steps for ``None``.

        Raises:
            TypeError: it is not a text.
            ValueError: it is not such a text, or there are no steps between the two.
        """
        if text is None:
            return cls()
        if not isinstance(text, str):
            raise TypeError(f"steps must be a text such as '57:60', got {type(text).__name__}")
        match = re.fullmatch(r"(\d*):(\d*)", text)
        steps = cls(int(match[1] or 0), int(match[2]) if match[2] else None) if match else None
        if steps is None or (steps.end is not None and steps.end <= steps.begin):
            raise ValueError(
                f"steps {text!r}: give them as BEGIN:END, counted from 0, without END, e.g. 57:58"
            )
        return steps

    def has(self, step: int) -> bool:
        """Return whether a step is among them."""
        return self.begin <= step and (self.end is None or step < self.end)

    def __str__(self) -> str:
        return f"{self.begin}:{'' if self.end is None else self.end}"
