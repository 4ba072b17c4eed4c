"""Who wants to see the calls that a mode substitutes: below a mode, only their parts would show."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

__all__ = ["Observer", "observers"]


class Observer(Protocol):
    """Sees whole calls."""

    def observe(
        self,
        func: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[[], Any],
    ) -> Any:
        """See one call, which ``run`` makes, and give its result."""


_local = threading.local()


def observers() -> list[Observer]:
    """Those of the calling thread, the innermost last."""
    found: list[Observer] | None = getattr(_local, "observers", None)
    if found is None:
        found = _local.observers = []
    return found
