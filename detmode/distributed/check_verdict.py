"""The verdict on a check: which ranks differ, in which tensor, and whether one can tell."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeAlias

_LISTED = 5
"""The most names that a verdict lists."""
_RUNNING_STATISTICS = ("running_mean", "running_var")


Held: TypeAlias = tuple[int, str, str]
"""A tensor as a rank holds it: the shard, of which all ranks are to hold the same bytes; the dtype
and shape, or a plain value; and the digest of the bytes in hexadecimal digits."""


class RankError(RuntimeError):
    """Ranks differ in what must be equal, or a rank takes no part in a check.

    >>> try:
    ...     with detmode.check_ranks(torch.nn.Linear(2, 1)) as check:
    ...         check.compare()
    ... except detmode.RankError as error:
    ...     print(error.ranks, error.tensor)

    Attributes:
        ranks: the ranks that differ from the majority, or take no part; all that are involved if
            one cannot tell.
        tensor: the name of the first tensor that differs; ``None`` if no tensor does.
        step: the number of the optimizer's step after which the check was made.
    """

    def __init__(
        self, text: str, ranks: tuple[int, ...] = (), tensor: str | None = None, step: int = 0
    ) -> None:
        super().__init__(text)
        self.ranks, self.tensor, self.step = ranks, tensor, step

    def to_json(self) -> str:
        """Return the error as text that :meth:`from_json` reads."""
        return json.dumps([str(self), self.ranks, self.tensor, self.step])

    @classmethod
    def from_json(cls, text: str | bytes) -> RankError | None:
        """Return the error that :meth:`to_json` wrote; ``None`` for JSON's ``null``."""
        fields = json.loads(text)
        return fields and cls(fields[0], tuple(fields[1]), *fields[2:])


def verdict_on_steps(steps: Mapping[int, int]) -> RankError | None:
    """Return the verdict on the numbers of steps that the ranks have made; ``None`` if equal."""
    parties = _parties(steps)
    if len(parties) == 1:
        return None
    counts = " and ".join(f"{ranks_text(party)} made {steps[party[0]]}" for party in parties)
    return RankError(f"check_ranks: {counts} steps", _suspects(parties), None, max(steps.values()))


def verdict_on_tensors(
    held: Mapping[int, Mapping[str, Held]], step: int, agreed: int | None
) -> RankError | None:
    """Return the verdict on what the ranks hold; ``None`` if all is as it should be.

    Args:
        held: by rank and name, in the order of the module, what is to be compared.
        step: the number of the step after which the digests were taken.
        agreed: the last step after which the ranks agreed.
    """
    names = dict.fromkeys(name for of_rank in held.values() for name in of_rank)
    differing = {}
    for name in names:
        difference = _difference(name, {rank: of_rank.get(name) for rank, of_rank in held.items()})
        if difference is not None:
            differing[name] = difference
    if not differing:
        return None
    first, *others = differing
    parties, what = differing[first]
    text = f"check_ranks: {what} after step {step}"
    if agreed is not None:
        text += f"; they agreed after step {agreed}"
    if len(parties[0]) * 2 <= sum(map(len, parties)):
        several = "two ranks" if sum(map(len, parties)) == 2 else "ranks without a majority"
        text += f". {several.capitalize()} cannot tell which of them is wrong"
    if others:
        more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
        text += f". These differ too: {', '.join(others[:_LISTED])}{more}"
    if any(name.rpartition(".")[2] in _RUNNING_STATISTICS for name in differing):
        text += (
            ". Running statistics are of each rank's own batches, unless the module is a "
            f"SyncBatchNorm: ignore={[f'*.{name}' for name in _RUNNING_STATISTICS]} leaves them out"
        )
    return RankError(text, _suspects(parties), first, step)


def _difference(
    name: str, held: Mapping[int, Held | None]
) -> tuple[list[tuple[int, ...]], str] | None:
    """Return the parties of the ranks that differ in a tensor, and how, in words."""
    parties = _parties({rank: item is None for rank, item in held.items()})
    if len(parties) > 1:
        having, lacking = sorted(parties, key=lambda ranks: held[ranks[0]] is None)
        has, has_not = (f"{ranks_text(item)} {_have(item)}" for item in (having, lacking))
        return parties, f"{has} {name!r} and {has_not} not"
    for shard in dict.fromkeys(item[0] for item in held.values() if item):
        replicas = {rank: item for rank, item in held.items() if item and item[0] == shard}
        parties = _parties(replicas)
        if len(parties) > 1:
            forms = " and ".join(dict.fromkeys(form for _, form, _ in replicas.values()))
            most, *rest = parties
            if len(most) * 2 > len(replicas):
                few = tuple(sorted(rank for ranks in rest for rank in ranks))
                what = f"{ranks_text(few)} {_have(few)} other bytes than {ranks_text(most)}"
            else:
                what = f"{_parties_text(parties)} have different bytes"
            return parties, f"{what} in {name!r} ({forms})"
    return None


def _parties(values: Mapping[int, Hashable]) -> list[tuple[int, ...]]:
    """Return the ranks with equal values together, the largest party first."""
    ranks_by_value: dict[Hashable, list[int]] = {}
    for rank, value in sorted(values.items()):
        ranks_by_value.setdefault(value, []).append(rank)
    return sorted(map(tuple, ranks_by_value.values()), key=lambda ranks: (-len(ranks), ranks))


def _parties_text(parties: Sequence[tuple[int, ...]]) -> str:
    if len(parties[0]) == 1:
        return ranks_text([rank for (rank,) in parties])
    return ", and ".join(map(ranks_text, parties)) + ","


def _suspects(parties: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the ranks outside the majority; all if there is none."""
    ranks = sum(map(len, parties))
    suspected = parties[1:] if len(parties[0]) * 2 > ranks else parties
    return tuple(sorted(rank for party in suspected for rank in party))


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def ranks_text(ranks: Sequence[int]) -> str:
    """Name ranks: ``rank 2``, ``ranks 0, 1 and 3``."""
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"
