"""A check of ``check_ranks`` that has begun: the small table that every rank sends to all."""

from __future__ import annotations

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from detmode.distributed.check_verdict import Held
from detmode.distributed.local_state import ShardDigests, hash_of

MOST_SHARDS = 31
"""The most shards, of different forms or devices, of which a rank may hold tensors."""


class BegunCheck:
    """A check that has begun.

    Attributes:
        number: counted from 1.
        step: the number of the step after which it was made.
        has_arrived: tells without waiting whether the tables of all ranks are here; set as the
            table is sent.
    """

    def __init__(
        self, number: int, step: int, shards: list[ShardDigests], *, knows_of_fault: bool
    ) -> None:
        self.number = number
        self.step = step
        self._shards = shards
        # A row of its own, and one for each shard: its key, its layout and its root.
        self._table = torch.zeros(1 + MOST_SHARDS, 4, dtype=torch.int64, device="cpu")
        names = sorted(local.name for shard in shards for _, local in shard.tensors)
        header = (hash_of("\n".join(names)), step, len(shards), int(knows_of_fault))
        self._table[0] = torch.tensor(header, device="cpu")
        for row, shard in enumerate(shards, 1):
            self._table[row, :2] = torch.tensor([shard.key, shard.layout], device="cpu")

    def meets_on_gpu(self, group: ProcessGroup) -> bool:
        """Return whether the group gathers the tables on GPUs."""
        pairs = distributed.get_backend_config(group).split(",")
        backends = dict(pair.split(":") for pair in pairs)
        on_gpu = any(shard.root.is_cuda for shard in self._shards)
        return "cpu" not in backends or (on_gpu and backends.get("cuda") == "nccl")

    def send(self, group: ProcessGroup) -> None:
        """Send the table to all ranks, from the host."""
        for row, shard in enumerate(self._shards, 1):
            self._table[row, 2:] = shard.root
        self._received = torch.empty(
            group.size(), *self._table.shape, dtype=torch.int64, device="cpu"
        )
        received = list(self._received.unbind(0))
        self._work = distributed.all_gather(received, self._table, group, async_op=True)
        self.has_arrived = self._work.is_completed

    def send_from_gpu(self, group: ProcessGroup, stream: torch.cuda.Stream) -> None:
        """Send the table to all ranks, on a stream of its own; the host waits for nothing."""
        on_host = [shard for shard in self._shards if not shard.root.is_cuda]
        for row, shard in enumerate(self._shards, 1):
            if shard in on_host:
                self._table[row, 2:] = shard.root
            else:
                stream.wait_stream(torch.cuda.current_stream(shard.root.device))
        # Memory that is not pinned would be copied at once, after waiting for the stream.
        self._table = self._table.pin_memory()
        with torch.cuda.stream(stream):
            self._sent = self._table.to(stream.device, non_blocking=True)
            for row, shard in enumerate(self._shards, 1):
                if shard not in on_host:
                    self._sent[row, 2:].copy_(shard.root, non_blocking=True)
            shape = (group.size(), *self._table.shape)
            self._gathered = self._sent.new_empty(shape)
            gathered = list(self._gathered.unbind(0))
            self._work = distributed.all_gather(gathered, self._sent, group, async_op=True)
            self._work.wait()  # of the stream
            self._received = torch.empty(shape, dtype=torch.int64, pin_memory=True, device="cpu")
            self._received.copy_(self._gathered, non_blocking=True)
            self.has_arrived = stream.record_event().query

    def received(self) -> Tensor:
        """Return the tables of all ranks; after they have arrived.

        Raises:
            RuntimeError: a rank has ended meanwhile.
        """
        if not self._received.is_pinned():
            self._work.wait()
        return self._received

    def held(self) -> dict[str, Held]:
        """Return what this rank holds, in the module's order."""
        by_position = {}
        for shard in self._shards:
            for (position, local), sums in zip(shard.tensors, shard.sums.tolist()):
                digest = "".join(f"{lane % (1 << 64):016x}" for lane in sums)
                by_position[position] = local.name, Held(shard.key, local.form, digest)
        return dict(by_position[position] for position in sorted(by_position))


def agree(tables: Tensor) -> bool:
    """Return whether the ranks hold tensors of the same names, and replicas are equal.

    Tensors that have moved to another shard on some ranks count as a difference too.
    """
    seen: dict[int, list[int]] = {}
    of_ranks: list[list[list[int]]] = tables.tolist()
    return len({header[0] for header, *_ in of_ranks}) == 1 and all(
        seen.setdefault(key, content) == content
        for header, *rows in of_ranks
        for key, *content in rows[: header[2]]
    )
