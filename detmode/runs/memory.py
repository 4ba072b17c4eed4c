"""The memory of a run that holds nothing yet: what nobody has written since it was allocated.

Its bytes differ between two runs of one program, and mean nothing until somebody writes them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from detmode.environment.dispatch import without_modes
from detmode.runs.tensors import is_strided
from detmode.sites.observers import observer
from detmode.table.overload_info import OverloadInfo

DEFINED, PARTLY, UNDEFINED = range(3)
"""The content of a tensor: all of it is known to mean something, some of it, or none."""

_MOST_ROWS = 1 << 12
"""The most rows of a strided view that are told apart; of more, what is between them counts too."""
_count_modes = torch._C._len_torch_dispatch_stack


class _Block:
    """The undefined bytes of a storage.

    Args:
        storage: while it is referenced weakly, its address is not given to another one.
        is_result: false where an operator leaves out part of a result that only its own backward
            uses. What is computed from it is defined.
    """

    def __init__(self, storage: torch.UntypedStorage, is_result: bool) -> None:
        self.reference = StorageWeakRef(storage)
        self.is_result = is_result
        # Disjoint, in order.
        self.spans: list[tuple[int, int]] = []

    def add(self, begin: int, end: int) -> None:
        self.remove(begin, end)
        self.spans = sorted([*self.spans, (begin, end)])

    def remove(self, begin: int, end: int) -> None:
        kept = []
        for first, last in self.spans:
            kept += [(first, min(last, begin)), (max(first, end), last)]
        self.spans = [(first, last) for first, last in kept if first < last]

    def within(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the undefined spans between two bytes."""
        cut = ((max(first, begin), min(last, end)) for first, last in self.spans)
        return [(first, last) for first, last in cut if first < last]


class Memory:
    """Follows the calls of a run."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}

    def content(self, tensor: Tensor) -> int:
        """Return one of :data:`DEFINED`, :data:`PARTLY` and :data:`UNDEFINED`.

        Args:
            tensor: strided, with a storage.
        """
        storage = tensor.untyped_storage()
        block = self._blocks.get(storage._cdata)
        if block is None:
            # A program that shards its parameters frees the memory of tensors that it keeps.
            return DEFINED if storage.nbytes() or not tensor.numel() else UNDEFINED
        undefined = n_bytes = 0
        for begin, end in _spans(tensor):
            n_bytes += end - begin
            undefined += sum(last - first for first, last in block.within(begin, end))
        if not undefined:
            return DEFINED
        return UNDEFINED if undefined == n_bytes else PARTLY

    def defined_part(self, tensor: Tensor) -> Tensor:
        """Return a copy with zeros in place of what is undefined."""
        storage = tensor.untyped_storage()
        spans = _spans(tensor)
        begin, end = spans[0][0], spans[-1][1]
        with without_modes():
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            found = torch.zeros(end - begin, dtype=torch.uint8, device=tensor.device)
            there = whole[begin:end]
            found[: len(there)] = there
            for first, last in self._blocks[storage._cdata].within(begin, end):
                found[first - begin : last - begin] = 0
            copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            return copy.set_(found.untyped_storage(), 0, tensor.shape, tensor.stride())

    def allocated(self, tensors: Iterable[Tensor], *, is_result: bool = True) -> None:
        """Note that the bytes of tensors are undefined."""
        for tensor in filter(is_strided, tensors):
            storage = tensor.untyped_storage()
            block = self._blocks.setdefault(storage._cdata, _Block(storage, is_result))
            for begin, end in _spans(tensor):
                block.add(begin, end)

    def written(self, tensors: Iterable[Tensor]) -> None:
        """Note that the bytes of tensors are defined."""
        for tensor in filter(is_strided, tensors if self._blocks else ()):
            address = tensor.untyped_storage()._cdata
            block = self._blocks.get(address)
            if block is not None:
                for begin, end in _spans(tensor):
                    block.remove(begin, end)
                if not block.spans:
                    del self._blocks[address]

    def resized(self, storage: torch.UntypedStorage, before: int) -> None:
        """Note that a storage had another number of bytes before; those not in both are undefined.

        A tensor that is left on less memory than it needs is undefined there too.
        """
        begin, end = sorted((before, storage.nbytes()))
        if begin < end:
            block = self._blocks.setdefault(storage._cdata, _Block(storage, True))
            block.add(begin, end)

    def computes_with_undefined(
        self, plan: OverloadInfo, inputs: list[Tensor], written: list[Tensor]
    ) -> bool:
        """Return whether a call about to be made reads what is undefined, so its results are, too.

        Of a call with lists of tensors nobody knows which of its results come from which of them:
        they are undefined where all that it reads is.
        """
        if not self._blocks or plan.reads_no_data or plan.asynchronous:
            return False
        if not plan.pointwise:
            # What they held before is overwritten.
            inputs = [tensor for tensor in inputs if not any(tensor is each for each in written)]
        undefined = [self._is_undefined_result(tensor) for tensor in filter(is_strided, inputs)]
        return bool(undefined) and (all if plan.has_lists else any)(undefined)

    def _is_undefined_result(self, tensor: Tensor) -> bool:
        block = self._blocks.get(tensor.untyped_storage()._cdata)
        return block is not None and block.is_result and self.content(tensor) == UNDEFINED

    def called(
        self,
        plan: OverloadInfo,
        inputs: list[Tensor],
        written: list[Tensor],
        fresh: list[Tensor],
        undefined: bool,
    ) -> None:
        """Note what a call has written.

        Args:
            plan: its overload, which does not allocate.
            inputs: the tensors that it may have read.
            written: the arguments that it has written.
            fresh: the results in memory of their own.
            undefined: what :meth:`computes_with_undefined` said before the call.
        """
        if undefined:
            self.allocated(fresh)
            # What was defined is not hidden, though undefined bytes are in it now.
            self.written(
                each for each in filter(is_strided, written) if self.content(each) != UNDEFINED
            )
        elif self._blocks:
            self.written(fresh)
            # What was undefined in the place of an element stays so.
            if not plan.pointwise:
                self.written(written)
            else:
                self.written(each for each in written if not any(each is i for i in inputs))

    def forget_freed(self) -> None:
        """Drop what is known about storages that are gone."""
        self._blocks = {
            address: block
            for address, block in self._blocks.items()
            if not block.reference.expired()
        }


def _spans(tensor: Tensor) -> list[tuple[int, int]]:
    """Return the bytes of its storage that a tensor covers, in order."""
    if not tensor.numel():
        return []
    length = size = tensor.itemsize
    begin = int(tensor.storage_offset()) * size
    rows: list[range] = []
    for stride, n in sorted(zip(tensor.stride(), tensor.shape)):
        if n == 1 or stride == 0:
            continue
        if stride * size == length and not rows:
            length *= n
        else:
            rows.append(range(0, stride * size * n, stride * size))
    n_rows = 1
    for row in rows:
        n_rows *= len(row)
    if n_rows > _MOST_ROWS:
        return [(begin, begin + sum(row[-1] for row in rows) + length)]
    starts = sorted(begin + sum(offsets) for offsets in itertools.product(*rows))
    return [(start, start + length) for start in starts]


def watch() -> None:
    """Show each resized storage to the innermost observer: it is no call of an operator."""
    storages: Any = torch.UntypedStorage
    if "resize_" in vars(storages):
        return
    resize = storages.resize_

    @functools.wraps(resize)
    def observed(storage: torch.UntypedStorage, size: int) -> Any:
        seen_by = observer() if _count_modes() else None
        if seen_by is None:
            return resize(storage, size)
        return seen_by.observe_resize(storage, functools.partial(resize, storage, size))

    storages.resize_ = observed
