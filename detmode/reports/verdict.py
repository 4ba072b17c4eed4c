"""The verdict on a run: one line, whose first word never says more than was seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from detmode.process.rank import named
from detmode.reports.page import plural
from detmode.reports.report_row import ReportRow

DETERMINISTIC = "deterministic on this GPU model with this software: every call met is covered"
UNCOUNTED = "unlisted calls, and those left to PyTorch's flag, were not counted"
UNLISTED = "unlisted calls were not counted"
ELSEWHERE = "are on other nodes, each of which gives a report"
"""The reason why ranks have no rows in the report of a node that is not theirs."""
NO_CALL = "no call ran on a GPU"


def verdict_of(
    rows: Sequence[ReportRow],
    head: Mapping[str, Any],
    gaps: Iterable[str],
    limits: Iterable[str],
    covered: str = DETERMINISTIC,
) -> str:
    """Return the verdict, which begins with one of four words.

    They are ``not finished``, ``may vary``, ``not checked`` and ``deterministic``.

    Args:
        rows: of the report.
        head: of the report.
        gaps: calls of the program, and ranks, for which the report has no rows.
        limits: parts of the run that the verdict leaves out.
        covered: the verdict if all calls were met and none may vary.
    """
    gaps, limits = list(gaps), list(limits)
    varying = [row for row in rows if row.varies]
    if varying:
        calls, lines = sum(row.count for row in varying), len({row.site for row in varying})
        seen = f"may vary: {plural(calls, 'call')} at {plural(lines, 'line')}"
        limits = [f"without {gap}" for gap in gaps] + limits
    elif "unsettled" in head:
        seen = "may vary: calls left to PyTorch's settings"
        limits = [f"without {gap}" for gap in gaps] + limits
    elif gaps:
        seen = f"not checked: {'; '.join(gaps)}"
    else:
        seen = covered if has_met(rows, head) else f"not checked: {NO_CALL}"
    if limits:
        seen = f"{seen} ({'; '.join(limits)})"
    failure = head.get("failure")
    return f"not finished: {failure}; until then: {seen}" if failure else seen


def gaps_of(head: Mapping[str, Any]) -> list[str]:
    """Return what a report's head names as not seen: ranks, and calls."""
    return _absent(head, elsewhere=False) + list(head.get("not_seen", ()))


def _absent(head: Mapping[str, Any], *, elsewhere: bool) -> list[str]:
    """Return a text for the ranks without rows that do, or do not, report elsewhere."""
    missing = head.get("missing", {}).items()
    ranks = [rank for why, some in missing for rank in some if (why == ELSEWHERE) is elsewhere]
    return [named(ranks)] if ranks else []


def has_met(rows: Sequence[ReportRow], head: Mapping[str, Any]) -> bool:
    """Return whether a call ran on a device that the rules are about."""
    return bool(head.get("devices", rows))


def limits_of(head: Mapping[str, Any]) -> list[str]:
    """Return what the verdict on a report with this head leaves out."""
    limits = []
    if head.get("intercept") == "listed":
        limits.append(UNLISTED if head.get("counts_native") else UNCOUNTED)
    limits += head.get("unsettled", ())
    limits += [f"without {ranks}" for ranks in _absent(head, elsewhere=True)]
    if "simulate" in head:
        limits.append("CUDA simulated")
    if "where" in head:
        limits.append(f"of the rows where {head['where']} alone")
    return limits
