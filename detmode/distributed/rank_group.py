"""The ranks that add: collectives on them, which do nothing in a process that is alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from detmode.process.dispatch import without_modes
from detmode.process.rank import has_group

T = TypeVar("T")


class RankGroup:
    """The ranks of a process group, or this process alone if there is none.

    Args:
        group: by default all ranks, if ``torch.distributed`` is initialized.
        device: of the tensors that are made here for collectives.

    Raises:
        ValueError: this process is not in the group.
    """

    def __init__(self, group: distributed.ProcessGroup | None, device: torch.device) -> None:
        present = has_group()
        self.size = distributed.get_world_size(group) if present else 1
        self.rank = distributed.get_rank(group) if present else 0
        if self.rank < 0:
            raise ValueError("this process is not in group; make the reducer on its ranks alone")
        self.device = device
        self._group = group

    def start(self, tensor: Tensor, op: distributed.ReduceOp.RedOpType) -> Iterator[None]:
        """All-reduce a tensor in place. Yields between the start and the end."""
        work = None
        if self.size > 1:
            work = distributed.all_reduce(tensor, op, group=self._group, async_op=True)
        yield
        if work is not None:
            work.wait()

    def max(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its maximum over the ranks."""
        for _ in self.start(tensor, distributed.ReduceOp.MAX):
            pass
        return tensor

    def sum(self, tensor: Tensor) -> Tensor:
        """Replace a tensor of integers by its sum over the ranks."""
        for _ in self.start(tensor, distributed.ReduceOp.SUM):
            pass
        return tensor

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by those of the first rank."""
        if self.size > 1:
            first = 0 if self._group is None else distributed.get_global_rank(self._group, 0)
            for tensor in tensors:
                # Backends take neither strided tensors nor, all of them, booleans.
                flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
                distributed.broadcast(flat, first, group=self._group)
                if flat.data_ptr() != tensor.data_ptr():
                    tensor.detach().copy_(flat.view(tensor.dtype).view(tensor.shape))

    def agree(self, about: str, *values: int) -> None:
        """Check that all ranks call this with the same values.

        Raises:
            RuntimeError: they do not; on every rank.
        """
        both = torch.tensor([*values, *(-value for value in values)], device=self.device)
        largest = self.max(both).tolist()
        highest, lowest = largest[: len(values)], [-value for value in largest[len(values) :]]
        if highest != lowest:
            raise RuntimeError(
                f"the ranks disagree on {about}, which must be the same on all of them; rank "
                f"{self.rank} has {values}"
            )


def gathered(value: T, group: distributed.ProcessGroup | None = None) -> list[T]:
    """Return the value of each rank; all ranks of the group call it."""
    size = distributed.get_world_size(group) if has_group() else 1
    if size == 1:
        return [value]
    values: list[Any] = [None] * size
    with without_modes():
        distributed.all_gather_object(values, value, group)
    return values


def digest(value: object) -> int:
    """Return 62 bits that follow from what an object prints as."""
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "big") >> 2
