"""The result of inspecting one setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from detmode.environment import known

Severity: TypeAlias = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""Weights of a finding, the heaviest first."""


@dataclass(frozen=True)
class Finding:
    """One setting or part of the environment.

    Args:
        subject: the setting that was inspected.
        state: its value here.
        effect: the consequence for reproducibility or speed.
        remedy: the action to take; ``None`` if there is nothing to do.
        severity: ``"error"`` for what makes two runs differ, whatever detmode does; ``"warning"``
            for what can, or slows them; ``"note"`` for what is fine, is only known in a program, or
            matters outside the mode or between machines alone. If left out, a remedy makes a
            warning.
    """

    subject: str
    state: str
    effect: str
    remedy: str | None = None
    severity: Severity = ""  # type: ignore[assignment]  # the remedy says which

    def __post_init__(self) -> None:
        if not self.severity:
            object.__setattr__(self, "severity", "warning" if self.remedy else "note")

    @classmethod
    def either(cls, subject: str, state: str, is_fine: bool, fine: str, *otherwise: Any) -> Finding:
        """A finding with the effect ``fine``, or else an effect, its remedy and its severity."""
        return cls(subject, state, *((fine,) if is_fine else otherwise))


Look = Callable[[], Iterator[Finding]]


def variable(name: str) -> str:
    """Return an environment variable as a state."""
    return known.variable(name) or "not set"
