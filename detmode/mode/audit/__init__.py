"""Auditing: what the mode would do on CUDA and what it would cost, found on any machine.

It may import :mod:`detmode.mode` and what is below. It knows nothing of the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

from detmode.mode.audit.audit_mode import Audit
from detmode.mode.audit.audit_report import AuditReport

__all__ = ["Audit", "AuditReport", "audit"]


P = ParamSpec("P")


def audit(fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> AuditReport:
    """Run ``fn(*args, **kwargs)`` as if on CUDA and report what would happen to each call.

    The tensors are CPU or meta tensors. Nothing is raised or warned about, no CUDA kernel runs, and
    the results are those of the CPU. Backward is reported if ``fn`` runs it.

    >>> report = detmode.audit(torch.histc, torch.ones(9), bins=3)
    >>> [(row.overload, row.action) for row in report]
    [('aten::histc.default', 'substitute')]

    Returns:
        An :class:`~detmode.mode.audit.AuditReport`: the action that ``DeterministicMode()`` would
        take at each site, the bytes that it adds, and what an audit cannot see.

    Raises:
        Exception: whatever ``fn`` itself raises.
    """
    mode = Audit()
    with mode:
        fn(*args, **kwargs)
    return mode.report()
