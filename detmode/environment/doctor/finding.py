"""What a look at one setting gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Finding:
    """One setting or part of the environment.

    Args:
        subject: what was looked at.
        state: what it is here.
        effect: what follows for reproducibility, or for speed.
        remedy: what to do; ``None`` where there is nothing to do.
    """

    subject: str
    state: str
    effect: str
    remedy: str | None = None

    def as_text(self) -> dict[str, str | None]:
        """The fields by name."""
        return asdict(self)


Look = Callable[[], Iterator[Finding]]


def variable(name: str) -> str:
    """An environment variable as a state."""
    return os.environ.get(name) or "not set"
