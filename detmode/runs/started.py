"""The starts of two runs: what differed before their first call."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from detmode.environment.lock.drift import drifts
from detmode.environment.lock.lock_file import without
from detmode.process.text import in_a_line
from detmode.runs.collectives import some_ranks
from detmode.runs.trace_file import Reader
from detmode.runs.trace_index import TraceIndex

Started: TypeAlias = tuple[str, str, str]
"""A name, the first run's value, and the second's."""
_STARTED = {"world_size": "world size", "arguments": "arguments"}
"""The fields of a trace that are compared besides its lock, and their names in a report."""


def started_differently(*runs: Reader) -> tuple[Started, ...]:
    """Return how the runs were started differently."""
    items: list[Started] = []
    first_lock, second_lock = (run.lock() for run in runs)
    if first_lock is not None and second_lock is not None:
        if two_ranks(*runs):
            first_lock = without(first_lock, "generators")  # ranks are seeded differently
        for name, first_value, second_value, _ in drifts(first_lock, second_lock):
            items.append((name, first_value, second_value))
    for key, name in _STARTED.items():
        first, second = (run.about.get(key) for run in runs)
        if first is not None and second is not None:
            items.append((name, _text(first), _text(second)))
    return tuple(item for item in items if item[1] != item[2])


def origins_of(*runs: Reader) -> tuple[tuple[str, str], ...]:
    """Return the origin of both runs: the folder, the program's arguments, PyTorch's version."""
    return tuple(
        (name, f"{run.path}: {_text(run.about.get('arguments'))}, PyTorch {_torch(run)}")
        for name, run in zip(("first run", "second run"), runs)
    )


def _torch(run: Reader) -> str:
    lock = run.lock()
    versions = {} if lock is None else lock.get("versions", {})
    return in_a_line(str(versions.get("torch", "not known")))


def started_of_all(by_rank: Mapping[int, Iterable[Started]]) -> tuple[Started, ...]:
    """Return how runs were started differently, with the ranks if it is not all of them."""
    ranks_of: dict[Started, list[int]] = {}
    for rank, started in by_rank.items():
        for item in started:
            ranks_of.setdefault(item, []).append(rank)
    return tuple(
        (name if len(ranks) == len(by_rank) else f"{name} of {some_ranks(ranks)}", first, second)
        for (name, first, second), ranks in ranks_of.items()
    )


def other_groups(*runs: TraceIndex) -> tuple[Started, ...]:
    """Return the process groups of one name that have other members or another backend."""
    first, second = (
        {
            collective.group.name: str(collective.group)
            for collective, _, _ in run.collectives.values()
        }
        for run in runs
    )
    names = [name for name in first if name in second and first[name] != second[name]]
    return tuple(("groups", first[name], second[name]) for name in names)


def _text(value: object) -> str:
    return shlex.join(map(str, value)) if isinstance(value, list) else str(value)


def reseeded_generators(*runs: Reader) -> tuple[str, ...]:
    """Return the generators whose states differed when the recordings began.

    Those that both programs seeded alike are left out.
    """
    first, second = (run.about.get("generators") for run in runs)
    if not isinstance(first, dict) or not isinstance(second, dict):
        return ()
    alike = _seeded_alike(*runs)
    return tuple(
        name
        for name in sorted(first)
        if name in second and first[name] != second[name] and name.partition(":")[0] not in alike
    )


def _seeded_alike(*runs: Reader) -> set[str]:
    first, second = ((run.lock() or {}).get("generators", {}) for run in runs)
    alike = {name for name in first if first[name] == second.get(name)}
    # torch.manual_seed seeds the GPUs' generators too.
    return alike | ({"cuda"} if "torch" in alike else set())


def two_ranks(*runs: Reader) -> tuple[str, str] | None:
    """Return the ranks of two recordings, if they are two different ones."""
    first, second = (run.about.get("rank") for run in runs)
    if isinstance(first, str) and isinstance(second, str) and first != second:
        return first, second
    return None
