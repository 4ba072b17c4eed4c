"""The place of this process in a distributed run: its launcher's word, or its process group's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Rank:
    """One of the processes that a launcher, such as ``torchrun``, starts.

    Args:
        number: the rank.
        world_size: the number of ranks.
        node: the ranks on this node; all of them if the launcher does not say.
        node_number: the number of this node.
        attempt: the number of times the launcher has started the ranks before.
        attempts: the number of times it starts them at most.
        run: a text that is the same for the ranks of this node in this run, and in no other run.
    """

    number: int
    world_size: int
    node: range
    node_number: int
    attempt: int
    attempts: int
    run: str

    @property
    def name(self) -> str:
        """Return ``"rank0"``, or ``"rank0.attempt1"`` if the launcher has started it again."""
        return f"rank{self.number}{self.suffix}"

    @property
    def suffix(self) -> str:
        """Return the part of a name that an attempt adds to that of the first one."""
        return f".attempt{self.attempt}" if self.attempt else ""

    def again(self, number: int, attempt: int | None = None) -> Rank:
        """Return another rank of this node, or the same in another attempt."""
        return replace(self, number=number, attempt=self.attempt if attempt is None else attempt)

    @property
    def is_last_attempt(self) -> bool:
        """True if the launcher gives up when a rank fails now."""
        return self.attempt + 1 >= self.attempts


def rank_of(environment: Mapping[str, str] = os.environ) -> Rank | None:
    """Return this process's place among the ranks, or ``None`` if no launcher has given it one."""

    def number(name: str, otherwise: int | None = None) -> int | None:
        value = environment.get(name, "")
        return int(value) if value.isdecimal() else otherwise

    rank, world_size = number("RANK"), number("WORLD_SIZE")
    if rank is None or world_size is None:
        return None
    local, on_node = number("LOCAL_RANK"), number("LOCAL_WORLD_SIZE")
    if local is None or on_node is None:
        local, on_node = rank, world_size
    # In torchrun's folder of logs, one for each run, attempts have folders, and ranks in these.
    # Elsewhere the ranks have one parent; what is started one after the other has, too.
    logs = Path(environment.get("TORCHELASTIC_ERROR_FILE", "")).parent.parent.parent
    address = [environment.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")]
    run = [str(logs)] if logs.name else [str(os.getppid()), *address]
    return Rank(
        rank,
        world_size,
        range(rank - local, rank - local + on_node),
        number("GROUP_RANK", (rank - local) // max(on_node, 1)) or 0,
        number("TORCHELASTIC_RESTART_COUNT", 0) or 0,
        (number("TORCHELASTIC_MAX_RESTARTS", 0) or 0) + 1,
        "\n".join([environment.get("TORCHELASTIC_RUN_ID", ""), *run]),
    )


def has_group() -> bool:
    """Return whether the program has initialized ``torch.distributed``."""
    from torch import distributed  # whoever asks has loaded PyTorch

    return distributed.is_available() and distributed.is_initialized()


def rank_and_size() -> tuple[int, int] | tuple[None, None]:
    """Return this process's rank and the number of ranks; both ``None`` if it is the only one.

    They are those of the default process group, and the launcher's until there is one.
    """
    if has_group():
        from torch import distributed

        return distributed.get_rank(), distributed.get_world_size()
    rank = rank_of()
    return (None, None) if rank is None else (rank.number, rank.world_size)


def spans_of(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last of the ranks that follow one another, in order."""
    spans: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        begin = spans.pop()[0] if spans and rank == spans[-1][1] + 1 else rank
        spans.append((begin, rank))
    return spans


def written(ranks: Iterable[int]) -> str:
    """Return ranks as text: ``"0-3, 6"``."""
    spans = spans_of(ranks)
    return ", ".join(f"{begin}-{end}" if end > begin else f"{begin}" for begin, end in spans)


def named(ranks: Iterable[int]) -> str:
    """Return ranks with their noun: ``"rank 2"``, ``"ranks 0-3, 6"``."""
    text = written(ranks)
    return f"rank {text}" if text.isdecimal() else f"ranks {text}"
