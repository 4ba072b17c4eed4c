"""The memory of a run that holds nothing yet: what nobody has written since it was allocated.

Its bytes differ between two runs of one program, and mean nothing until they are written. That
NumPy, C++ or a Triton kernel has written them, no call of an operator says. New memory is therefore
marked: bytes at fixed places of it get values of their own, and what the memory held is kept. When
an operator is about to read it, the places tell: where the mark is gone, there was a write, and
elsewhere it gets back what it held, so that the operator reads what it would read by itself. So
the bytes alone decide whether memory counts as written, in all runs alike.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from detmode.environment.dispatch import without_modes
from detmode.mode.repetition.tensors import is_strided
from detmode.sites.observers import observer
from detmode.table.overload_info import OverloadInfo

DEFINED, PARTLY, UNDEFINED = range(3)
"""The content of a tensor: all of it is known to mean something, some of it, or none."""

_CELL = 16
"""The bytes of a cell of marked memory, which is written or not as a whole."""
_MOST_CELLS = 1 << 8
"""The most cells of a mark; in larger memory they lie apart."""
_FORMS = 1 << 10
_MOST_ROWS = 1 << 12
"""The most rows of a strided view that are distinguished; beyond, gaps count too."""
_Span: TypeAlias = tuple[int, int]
"""The first of some bytes of a storage, and the first after them."""
_count_modes = torch._C._len_torch_dispatch_stack


class _Mark:
    """The mark in new memory.

    Args:
        storage: on a CPU or a CUDA device.
        begin: the first of the bytes that are new; those up to the storage's end are.
        device: the storage's.
    """

    def __init__(self, storage: torch.UntypedStorage, begin: int, device: torch.device) -> None:
        self._begin, self._end = begin, storage.nbytes()
        self._device = device
        self._starts, self._places, mark = _cells(self._end - begin, device)
        with without_modes():
            new = self._new(storage)
            self._held = new[self._places]
            new[self._places] = mark

    def _new(self, storage: torch.UntypedStorage) -> Tensor:
        whole = torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage)
        return whole[self._begin : self._end]

    def look(
        self, storage: torch.UntypedStorage, takes_off: bool
    ) -> tuple[list[_Span], list[_Span]]:
        """See what is written; if ``takes_off``, put back what the memory held elsewhere.

        Returns:
            The bytes that are written, and those between a cell that is and one that is not.
        """
        if storage.nbytes() < self._end:
            return [], []
        with without_modes():
            new = self._new(storage)
            is_written = new[self._places] != _cells(self._end - self._begin, self._device)[2]
            cells = is_written.view(-1, _CELL).any(1)
            if takes_off:
                kept = self._places.view(-1, _CELL)[~cells].view(-1)
                new[kept] = self._held.view(-1, _CELL)[~cells].view(-1)
            found = cells.tolist()
        written, between = [], []
        starts = [self._begin + start for start in self._starts]
        for start, after, this, next_ in zip(
            starts, [*starts[1:], self._end], found, [*found[1:], False]
        ):
            end = min(start + _CELL, after)
            if this:
                written.append((start, after if next_ else end))
            if this != next_:
                between.append((end, after))
        return written, between


@functools.lru_cache(_FORMS)
def _cells(n_bytes: int, device: torch.device) -> tuple[list[int], Tensor, Tensor]:
    """Return the cells of a mark.

    Returns:
        The first byte of each; the places of all their bytes, int64 of shape (cells * 16,), where
        those after the last byte are the last byte; and the mark, uint8 of that shape.
    """
    n_cells = -(-n_bytes // _CELL)
    if n_cells > _MOST_CELLS:
        starts = [number * (n_bytes - _CELL) // (_MOST_CELLS - 1) for number in range(_MOST_CELLS)]
    else:
        starts = list(range(0, n_bytes, _CELL))
    with without_modes():
        places = torch.tensor(starts, device="cpu")[:, None] + torch.arange(_CELL, device="cpu")
        places = places.clamp(max=n_bytes - 1).view(-1)
        # Not a number, in every floating dtype: the odd bytes end the exponent.
        mark = torch.where(places % 2 == 1, 0xFF, 0x81 + places * 37 % 0x7F).to(torch.uint8)
        return starts, places.to(device), mark.to(device)


class _Spans:
    """Disjoint spans of bytes, in order."""

    def __init__(self) -> None:
        self.all: list[_Span] = []

    def add(self, begin: int, end: int) -> None:
        self.remove(begin, end)
        self.all = sorted([*self.all, (begin, end)])

    def remove(self, begin: int, end: int) -> None:
        kept = []
        for first, last in self.all:
            kept += [(first, min(last, begin)), (max(first, end), last)]
        self.all = [(first, last) for first, last in kept if first < last]

    def within(self, begin: int, end: int) -> list[_Span]:
        """Return the parts of the spans between two bytes."""
        cut = ((max(first, begin), min(last, end)) for first, last in self.all)
        return [(first, last) for first, last in cut if first < last]


class _Block:
    """The state of a storage's bytes, as far as it is known.

    Args:
        storage: while it is referenced weakly, its address is not given to another one.
        is_result: false where an operator leaves out part of a result that only its own backward
            uses. What is computed from it is defined.
    """

    def __init__(self, storage: torch.UntypedStorage, is_result: bool) -> None:
        self.reference = StorageWeakRef(storage)
        self.is_result = is_result
        self.undefined = _Spans()
        # Between two places of a mark, only one of which is written.
        self.uncertain = _Spans()
        self.marks: list[_Mark] = []

    def look(self, storage: torch.UntypedStorage, takes_off: bool) -> None:
        """See what has been written to marked memory."""
        for mark in self.marks:
            written, between = mark.look(storage, takes_off)
            for begin, end in written:
                self.undefined.remove(begin, end)
            for begin, end in between:
                for first, last in self.undefined.within(begin, end):
                    self.uncertain.add(first, last)
                self.undefined.remove(begin, end)

    def written(self, begin: int, end: int) -> None:
        self.undefined.remove(begin, end)
        self.uncertain.remove(begin, end)


class Memory:
    """Follows the calls of a run."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}

    @property
    def is_defined(self) -> bool:
        """True if all is, as far as is known."""
        return not self._blocks

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
            undefined += sum(last - first for first, last in block.undefined.within(begin, end))
        if not undefined:
            return DEFINED
        return UNDEFINED if undefined == n_bytes else PARTLY

    def defined_part(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor in part defined, with zeros in place of the rest."""
        storage = tensor.untyped_storage()
        covered = _spans(tensor)
        begin, end = covered[0][0], covered[-1][1]
        with without_modes():
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            found = torch.zeros(end - begin, dtype=torch.uint8, device=tensor.device)
            there = whole[begin:end]
            found[: len(there)] = there
            block = self._blocks[storage._cdata]
            for spans in (block.undefined, block.uncertain):
                for first, last in spans.within(begin, end):
                    found[first - begin : last - begin] = 0
            copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            return copy.set_(found.untyped_storage(), 0, tensor.shape, tensor.stride())

    def look(self, tensors: Iterable[Tensor], *, takes_off: bool = True) -> None:
        """See what others have written of memory that an operator is about to read.

        The marks are left to an operator that may write without saying so.
        """
        for tensor in filter(is_strided, tensors if self._blocks else ()):
            storage = tensor.untyped_storage()
            block = self._blocks.get(storage._cdata)
            if block is not None and block.marks:
                block.look(storage, takes_off)
                if takes_off:
                    block.marks.clear()
                self._drop_if_defined(storage._cdata)

    def _drop_if_defined(self, address: int) -> None:
        if not self._blocks[address].undefined.all:
            del self._blocks[address]

    def new(self, tensors: Iterable[Tensor]) -> None:
        """Note that tensors have just been allocated, by an operator that does no more."""
        for tensor in filter(is_strided, tensors):
            self.resized(tensor.untyped_storage(), 0)

    def allocated(self, tensors: Iterable[Tensor], *, is_result: bool = True) -> None:
        """Note that the bytes of tensors are undefined."""
        for tensor in filter(is_strided, tensors):
            storage = tensor.untyped_storage()
            block = self._blocks.setdefault(storage._cdata, _Block(storage, is_result))
            for begin, end in _spans(tensor):
                block.undefined.add(begin, end)

    def written(self, tensors: Iterable[Tensor]) -> None:
        """Note that the bytes of tensors are defined."""
        for tensor in filter(is_strided, tensors if self._blocks else ()):
            address = tensor.untyped_storage()._cdata
            block = self._blocks.get(address)
            if block is not None:
                for begin, end in _spans(tensor):
                    block.written(begin, end)
                self._drop_if_defined(address)

    def resized(self, storage: torch.UntypedStorage, before: int) -> None:
        """Note that a storage had another number of bytes before; those not in both are undefined.

        A tensor that is left on less memory than it needs is undefined there too.
        """
        begin, end = sorted((before, storage.nbytes()))
        if begin < end:
            block = self._blocks.setdefault(storage._cdata, _Block(storage, True))
            block.undefined.add(begin, end)
            if end == storage.nbytes() and storage.device.type in ("cpu", "cuda"):
                block.marks.append(_Mark(storage, begin, storage.device))

    def read_undefined(
        self, plan: OverloadInfo, inputs: list[Tensor], written: list[Tensor]
    ) -> bool:
        """Return whether a call about to be made reads what is undefined, so its results are, too.

        Of a call with lists of tensors nobody knows which of its results come from which of them:
        they are undefined where all that it reads is.
        """
        if not self._blocks or plan.reads_no_data or plan.aliases:
            return False
        if not plan.pointwise:
            # What they held before is overwritten.
            inputs = [tensor for tensor in inputs if not any(tensor is each for each in written)]
        self.look(inputs, takes_off=plan.func.namespace == "aten")
        if plan.asynchronous:
            return False
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
            undefined: the answer of :meth:`read_undefined` before the call.
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


def _spans(tensor: Tensor) -> list[_Span]:
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
