"""Comparing two runs of many ranks: the rank, and the call, at which they diverge first."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from detmode.runs.comparison import Comparison
from detmode.runs.diff import Parts, diff_traces
from detmode.runs.divergence import Divergence
from detmode.runs.ranks_comparison import Cause, RunComparison
from detmode.runs.started import started_of_all
from detmode.runs.steps_diff import diff_steps, level_of
from detmode.runs.trace_file import Reader, TraceError
from detmode.runs.trace_writer import CALL

_FOLDER = re.compile(r"rank(\d{1,9})(?:\.attempt(\d{1,9}))?\Z")


def diff(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> Comparison:
    """Compare two runs that :func:`detmode.record` wrote.

    >>> for name, value in {"first": 1.0, "second": 2.0}.items():
    ...     with detmode.record(name):
    ...         sums = torch.full((3,), value).cumsum(0)
    >>> detmode.diff("first", "second").identical
    False

    Args:
        first: the folder of one run: a trace, or a folder with one for each rank (``rank0``,
            ``rank1``, ...).
        second: the folder of the other.

    Returns:
        For runs of several ranks, a :class:`~detmode.runs.ranks_comparison.RunComparison`; for
        recordings of level "module" or "step", a
        :class:`~detmode.runs.steps_diff.StepsComparison`.

    Raises:
        TraceError: one of them cannot be read, or only one of them is a run of several ranks.
    """
    ours, theirs = _traces(first), _traces(second)
    if not ours and not theirs:
        alone = {0: (Path(first), Path(second))}
        level = level_of(alone)
        if level == CALL:
            comparison, _ = diff_traces(first, second)
            return comparison
        return diff_steps(alone, ((), ()), level, is_run=False)
    for path, traces, others in ((first, ours, theirs), (second, theirs, ours)):
        if not traces:
            Reader(path)
            raise TraceError(
                f"{path} is the recording of one process, and the other folder has those of "
                f"several ranks: name one of them, such as {min(others.values())}"
            )
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        raise TraceError(f"{first} and {second} have no rank in common: record all ranks of both")
    pairs = {rank: (ours[rank], theirs[rank]) for rank in common}
    missing = (
        tuple(sorted(ours.keys() - theirs.keys())),
        tuple(sorted(theirs.keys() - ours.keys())),
    )
    level = level_of(pairs)
    if level != CALL:
        return diff_steps(pairs, missing, level, is_run=True)
    diffs = {rank: diff_traces(*pair) for rank, pair in pairs.items()}
    comparisons = {rank: comparison for rank, (comparison, _) in diffs.items()}
    return _joined(comparisons, {rank: parts for rank, (_, parts) in diffs.items()}, missing)


def _traces(path: str | os.PathLike[str]) -> dict[int, Path]:
    """Return the traces of a run by their ranks; empty if it is a trace itself.

    Of a rank that its launcher has started again, it is the trace of the last attempt.
    """
    latest: dict[int, tuple[int, Path]] = {}
    if not (Path(path) / "trace.json").exists():
        for file in Path(path).glob("rank*/trace.json"):
            match = _FOLDER.match(file.parent.name)
            if match is not None:
                rank, attempt = int(match[1]), int(match[2] or 0)
                latest[rank] = max(latest.get(rank, (0, file.parent)), (attempt, file.parent))
    return {rank: folder for rank, (_, folder) in latest.items()}


def _joined(
    comparisons: Mapping[int, Comparison],
    parts: Mapping[int, Parts],
    missing: tuple[tuple[int, ...], tuple[int, ...]],
) -> RunComparison:
    """Return the comparison of all ranks, whose cause is the earliest one."""
    divergences = {
        rank: comparison.divergence
        for rank, comparison in comparisons.items()
        if comparison.divergence is not None
    }
    origins = {rank: _origin(rank, divergences, parts) for rank in divergences}
    by_themselves = [rank for rank, (source, _) in origins.items() if source is None]
    # Without one, a message that nobody can match has hidden it: all are named.
    ranks = by_themselves or list(origins)
    # In the order of collectives.
    ranks.sort(key=lambda rank: (sum(part.place < 0 for part in parts[rank].values()), rank))
    causes = _causes({rank: (divergences[rank], origins[rank][1]) for rank in ranks})
    shown = comparisons[causes[0].ranks[0] if causes else min(comparisons)]

    def total(name: str) -> int:
        return sum(getattr(entry, name) for entry in comparisons.values())

    return RunComparison(
        divergence=causes[0].divergence if causes else None,
        outputs=shown.outputs,
        drift=None,
        same=total("same"),
        different=total("different"),
        only_first=total("only_first"),
        only_second=total("only_second"),
        incomplete=tuple(path for entry in comparisons.values() for path in entry.incomplete),
        unrecorded=tuple(run for entry in comparisons.values() for run in entry.unrecorded),
        lines=shown.lines,
        timeline=shown.timeline,
        origin=shown.origin,
        dumped=shown.dumped,
        to_dump=shown.to_dump,
        steps=shown.steps,
        started=started_of_all({rank: entry.started for rank, entry in comparisons.items()}),
        causes=causes,
        comparisons=comparisons,
        reached={rank: source for rank, (source, _) in origins.items() if source is not None},
        missing=missing,
    )


def _origin(
    rank: int, divergences: Mapping[int, Divergence], parts: Mapping[int, Parts]
) -> tuple[int | None, tuple[int, ...]]:
    """Return the rank that a rank's divergence came from, and the members not compared.

    They are those of its collective whose inputs could not be. ``None`` for a difference of its
    own.
    """
    divergence = divergences[rank]
    if divergence.kind == "received":
        suspects = [part for part in parts[rank].values() if not part.place]
    elif any(name.startswith("input") for name in divergence.differing):
        # They may be those of a collective whose result was not digested.
        suspects = [
            part for part in parts[rank].values() if part.place < 0 and not part.whole_results
        ]
    else:
        suspects = []
    unknown = []
    for part in reversed(suspects):
        for member in part.collective.sources:
            if member == rank:
                continue
            theirs = parts.get(member, {}).get(part.collective.key)
            if theirs is None and member not in divergences:
                unknown.append(member)
            elif theirs is None or not theirs.gave_the_same:
                # Without a part, it made other calls, or its recording ends before.
                return member, ()
    return None, tuple(unknown) if divergence.kind == "received" else ()


def _causes(differences: Mapping[int, tuple[Divergence, tuple[int, ...]]]) -> tuple[Cause, ...]:
    """Return the causes of ranks' divergences and unknown members; what several share is one."""
    causes: dict[object, Cause] = {}
    for rank, (divergence, unknown) in differences.items():
        if divergence.kind == "received" and not unknown:
            divergence = replace(divergence, kind="collective")
        key = (divergence.kind, divergence.line)
        known = causes.get(key, Cause((), divergence, unknown))
        causes[key] = replace(known, ranks=(*known.ranks, rank))
    return tuple(causes.values())
