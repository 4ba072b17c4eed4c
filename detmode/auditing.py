"""``audit``: what a CUDA run would meet, on a machine without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from detmode.call import Call
from detmode.mode import DeterministicMode
from detmode.plan import Plan
from detmode.report import Report
from detmode.rule import Native, Substitute
from detmode.settings import flag
from detmode.table import Row


class _Audit(DeterministicMode):
    """Records what the strict mode would do, and does nothing of it."""

    def _act(
        self,
        plan: Plan,
        row: Row | None,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        traced: bool,
    ) -> Any:
        self._recorder.count(plan, row, self._would(plan, row), call, self._trace)
        with flag(False):
            return plan.func(*args, **kwargs)

    def _would(self, plan: Plan, row: Row | None) -> str:
        if self._trace.allows(plan.names):
            return "allow"
        action = row.rule.action if row else None
        if isinstance(action, Substitute):
            return "substitute"
        if isinstance(action, Native):
            return "native"
        return "error" if row and row.rule.alert else "warn"


def audit(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """Run ``fn(*args, **kwargs)`` as if on CUDA and report what each call would meet.

    The tensors are CPU or meta tensors; nothing is raised or warned, no CUDA kernel runs, and the
    results are those of the CPU. Backward is reported if ``fn`` runs it.

    Returns:
        A :class:`~detmode.report.Report`: the action that the strict mode would take at each site.

    Raises:
        Exception: what ``fn`` itself raises.
    """
    mode = _Audit(simulate="cuda")
    with mode:
        fn(*args, **kwargs)
    return mode.report()
