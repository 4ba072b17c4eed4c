"""What a CUDA run would meet and what it would cost, on a machine without one.

It may import :mod:`detmode.mode` and what is below. It does not know how its report is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from detmode.audit.mode import Audit
from detmode.audit.report import AuditReport

__all__ = ["Audit", "AuditReport", "audit"]


def audit(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> AuditReport:
    """Run ``fn(*args, **kwargs)`` as if on CUDA and report what each call would meet.

    The tensors are CPU or meta tensors; nothing is raised or warned, no CUDA kernel runs, and the
    results are those of the CPU. Backward is reported if ``fn`` runs it.

    Returns:
        An :class:`~detmode.audit.AuditReport`: the action that the strict mode would take at
        each site, how many bytes it adds, and what an audit cannot see.

    Raises:
        Exception: what ``fn`` itself raises.
    """
    mode = Audit()
    with mode:
        fn(*args, **kwargs)
    return mode.report()
