"""The identity of a collective: its group, and its number there, by which ranks are matched.

PyTorch's flight recorder keys collectives in the same way: by the name of the group and a sequence
number in it, with point-to-point calls counted apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.distributed import distributed_c10d

from detmode.bits.effects import Effects
from detmode.process.rank import spans_of

_PEERS = {
    "c10d::send": ("dst", True),
    "c10d::recv_": ("src", False),
    "c10d::recv_any_source_": (None, False),
    "_c10d_functional::isend": ("dst", True),
    "_c10d_functional::irecv": ("src", False),
}
"""For each point-to-point operator, the argument that names the peer, and whether it sends."""
ANY = -1
"""Stands for the sender that ``recv`` without a source receives from."""


class GroupIdentity(NamedTuple):
    """A process group.

    Args:
        name: PyTorch's name of it, the same on all its members.
        description: its purpose, as PyTorch has it: "default_pg", "mesh_dp".
        backend: "cpu:gloo,cuda:nccl".
        ranks: its members, as ranks of the world; empty if unknown.
    """

    name: str
    description: str
    backend: str
    ranks: tuple[int, ...]

    @property
    def members(self) -> tuple[str, tuple[int, ...]]:
        """Its identity in a run."""
        return self.name, self.ranks

    def __str__(self) -> str:
        ranks = some_ranks(self.ranks) if self.ranks else "unknown ranks"
        return f"group {self.name} ({self.description}: {ranks}; {self.backend})"


class Collective(NamedTuple):
    """One collective or point-to-point call, as all ranks that take part number it.

    Args:
        group: the group.
        number: counted from 0 in the group; for a point-to-point call, among those with the same
            sender, receiver and tag.
        peers: for a point-to-point call, the sender and the receiver, as ranks of the group, and
            the tag; otherwise empty.
    """

    group: GroupIdentity
    number: int
    peers: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """The same on all ranks that take part."""
        return self.group.members, self.number, self.peers

    @property
    def sources(self) -> tuple[int, ...]:
        """The ranks of the world whose inputs decide its results, as far as they are known."""
        ranks = self.group.ranks
        if not self.peers or self.peers[0] == ANY:
            return ranks
        return ranks[self.peers[0] : self.peers[0] + 1]

    def __str__(self) -> str:
        if not self.peers:
            return f"collective {self.number} of {self.group}"
        source, destination, tag = self.peers
        sender = "any rank" if source == ANY else f"rank {source}"
        return (
            f"message {self.number} with tag {tag} from {sender} to rank {destination} of "
            f"{self.group}"
        )


def numbered(
    effects: Effects, args: tuple[Any, ...], kwargs: dict[str, Any], counts: Counter[Any]
) -> Collective | None:
    """Return the identity of a run's next collective; ``None`` if its group cannot be told.

    It is counted in ``counts``, by its group and its peers.
    """
    arguments = effects.signature.bind(args, kwargs)
    process_group = _process_group(arguments.get("process_group", arguments.get("group_name")))
    if process_group is None:
        return None
    group, peers = _described(process_group), _peers(effects, arguments, process_group.rank())
    counts[group, peers] += 1
    return Collective(group, counts[group, peers] - 1, peers)


def some_ranks(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0, 1, 4-7``."""
    named = [
        f"{begin}-{end}" if end > begin + 1 else ", ".join(map(str, sorted({begin, end})))
        for begin, end in spans_of(ranks)
    ]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(named)}"


def _process_group(value: Any) -> Any:
    """Return the group that an operator was given: by itself, boxed, or by name."""
    if isinstance(value, str):
        return _registered(value)
    if isinstance(value, torch.ScriptObject):
        return distributed.ProcessGroup.unbox(value)
    return value if isinstance(value, distributed.ProcessGroup) else None


def _registered(name: str) -> Any:
    try:
        return distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined, arg-type]  # private
    except (RuntimeError, ValueError, KeyError):
        return None


def _described(group: Any) -> GroupIdentity:
    known = _registered(group.group_name)
    if known is None:
        # Made by a backend's constructor: it has no ranks of the world.
        return GroupIdentity(group.group_name, group.group_desc, group.name(), ())
    ranks: Sequence[int] = distributed.get_process_group_ranks(known)
    backend = str(distributed.get_backend_config(known))
    return GroupIdentity(group.group_name, group.group_desc, backend, tuple(ranks))


def _peers(effects: Effects, arguments: dict[str, Any], rank: int) -> tuple[int, ...]:
    name, sends = _PEERS.get(effects.func._schema.name, (None, None))
    if sends is None:
        return ()
    peer = ANY if name is None else arguments[name]
    tag = arguments.get("tag") or 0
    return (rank, peer, tag) if sends else (peer, rank, tag)
