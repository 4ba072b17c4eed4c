"""The memory of a run that holds nothing yet: what nobody has written since it was allocated.

Its bytes differ between two runs of one program, and mean nothing until they are written. That
NumPy, C++ or a Triton kernel has written them, no call of an operator says. New memory is therefore
marked: bytes at fixed places of it get values of their own, and what the memory held is kept. When
an operator is about to read it, the places tell: where the mark is gone, there was a write, and
elsewhere it gets back what it held, so that the operator reads what it would read by itself. So
the bytes alone decide whether memory counts as written, in all runs alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from detmode.bits.effects import Effects
from detmode.bits.tensors import bytes_of, is_strided
from detmode.process.dispatch import without_modes
from detmode.process.extent import extent_of
from detmode.runs.marks import CELL, Mark, Span

DEFINED, PARTLY, UNDEFINED = range(3)
"""The content of a tensor: all of it is known to mean something, some of it, or none."""

_MOST_ROWS = 1 << 12
"""The most rows of a strided view that are distinguished; beyond, gaps count too."""
_MOST_ELEMENTS = 1 << 24
_MOST_PIECES = 1 << 8
"""The size of results, and their pieces, up to which undefined elements are followed."""
_MOST_MARKED = 1 << 3
"""The most pieces that are marked again after a write in between."""


class _Spans:
    """Disjoint spans of bytes, in order."""

    def __init__(self) -> None:
        self.all: list[Span] = []

    def add(self, begin: int, end: int) -> None:
        self.remove(begin, end)
        self.all = sorted([*self.all, (begin, end)])

    def remove(self, begin: int, end: int) -> None:
        remaining = []
        for first, last in self.all:
            remaining += [(first, min(last, begin)), (max(first, end), last)]
        self.all = [(first, last) for first, last in remaining if first < last]

    def within(self, begin: int, end: int) -> list[Span]:
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
        self.marks: list[Mark] = []
        # What lost its mark because an operator was to write beside it.
        self._loose: list[Span] = []

    def look(self, storage: torch.UntypedStorage, takes_off: bool) -> None:
        """See what has been written to marked memory; if ``takes_off``, take off all marks."""
        for mark in self.marks:
            self._look(mark, storage, np.full(len(mark), takes_off) if takes_off else None)
        if takes_off:
            self.marks.clear()
            self._loose.clear()

    def make_way(self, storage: torch.UntypedStorage, spans: list[Span]) -> None:
        """Take the marks off all cells of which an operator is about to write a part, or all."""
        for mark in self.marks:
            reached = mark.reached(spans)
            if reached.any():
                loose = self._look(mark, storage, reached)
                self._loose += loose if len(mark) else [(mark.begin, mark.end)]
        self.marks = [mark for mark in self.marks if len(mark)]

    def mark_again(self, storage: torch.UntypedStorage, device: torch.device) -> None:
        """Mark what :meth:`make_way` took the marks off and nothing was written to."""
        pieces = [piece for span in self._loose for piece in self.undefined.within(*span)]
        self._loose.clear()
        for begin, end in pieces if len(pieces) <= _MOST_MARKED else ():
            if end - begin >= CELL:
                self.marks.append(Mark(storage, begin, end, device))

    def _look(self, mark: Mark, storage: torch.UntypedStorage, takes_off: Any | None) -> list[Span]:
        written, between, loose = mark.look(storage, takes_off)
        for begin, end in written:
            self.undefined.remove(begin, end)
        for begin, end in between:
            for first, last in self.undefined.within(begin, end):
                self.uncertain.add(first, last)
            self.undefined.remove(begin, end)
        return loose

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
        begin, end = extent_of(tensor)
        with without_modes():
            copied = torch.zeros(end - begin, dtype=torch.uint8, device=tensor.device)
            there = bytes_of(storage)[begin:end]
            copied[: len(there)] = there
            block = self._blocks[storage._cdata]
            for spans in (block.undefined, block.uncertain):
                for first, last in spans.within(begin, end):
                    copied[first - begin : last - begin] = 0
            copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            return copy.set_(copied.untyped_storage(), 0, tensor.shape, tensor.stride())

    def look(self, tensors: Iterable[Tensor], *, takes_off: bool = True) -> None:
        """See what others have written of memory that an operator is about to read.

        The marks are left to an operator that may write without saying so.
        """
        for tensor in filter(is_strided, tensors if self._blocks else ()):
            storage = tensor.untyped_storage()
            block = self._blocks.get(storage._cdata)
            if block is not None and block.marks:
                block.look(storage, takes_off)
                self._drop_if_defined(storage)

    def _drop_if_defined(self, storage: torch.UntypedStorage) -> None:
        block = self._blocks[storage._cdata]
        if not block.undefined.all:
            # Nobody would take them off later.
            block.look(storage, True)
            del self._blocks[storage._cdata]

    def release(self) -> None:
        """Put back what all marked memory held."""
        for block in self._blocks.values():
            if block.marks and not block.reference.expired():
                storage = torch.UntypedStorage._new_with_weak_ptr(block.reference.cdata)
                if storage is not None:
                    block.look(storage, True)
        self._blocks.clear()

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
        storages: dict[int, torch.UntypedStorage] = {}
        for tensor in filter(is_strided, tensors if self._blocks else ()):
            storage = tensor.untyped_storage()
            block = self._blocks.get(storage._cdata)
            if block is not None:
                storages[storage._cdata] = storage
                for begin, end in _spans(tensor):
                    block.written(begin, end)
        # A collective still writes all of them: one that is not noted yet would get a mark.
        for key, storage in storages.items():
            self._blocks[key].mark_again(storage, storage.device)
            self._drop_if_defined(storage)

    def resized(self, storage: torch.UntypedStorage, before: int) -> None:
        """Note that a storage had another number of bytes before; those not in both are undefined.

        A tensor that is left on less memory than it needs is undefined there too.
        """
        begin, end = sorted((before, storage.nbytes()))
        if begin < end:
            block = self._blocks.setdefault(storage._cdata, _Block(storage, True))
            block.undefined.add(begin, end)
            if end == storage.nbytes() and storage.device.type in ("cpu", "cuda"):
                block.marks.append(Mark(storage, begin, end, storage.device))

    def read_by(self, effects: Effects, inputs: list[Tensor], written: list[Tensor]) -> int:
        """Return the content of what a call about to be made reads.

        If that is undefined, so are its results.

        Of a call with lists of tensors nobody knows which of its results come from which of them:
        they are undefined where all that it reads is.
        """
        if not self._blocks or effects.reads_no_data or effects.aliases or effects.rebinds:
            return DEFINED
        if not effects.pointwise:
            # What they held before is overwritten.
            inputs = [
                tensor for tensor in inputs if not any(tensor is argument for argument in written)
            ]
        self.look(inputs, takes_off=effects.is_atens)
        if effects.is_atens or effects.asynchronous:
            # A collective goes on writing when its call has returned: nothing is put back then.
            self._make_way(written)
        if effects.asynchronous:
            return DEFINED
        contents = [self._content_of_result(tensor) for tensor in filter(is_strided, inputs)]
        if UNDEFINED in contents and (not effects.has_lists or set(contents) == {UNDEFINED}):
            return UNDEFINED
        return PARTLY if any(contents) else DEFINED

    def _make_way(self, written: list[Tensor]) -> None:
        for tensor in filter(is_strided, written):
            storage = tensor.untyped_storage()
            block = self._blocks.get(storage._cdata)
            if block is not None and block.marks:
                block.make_way(storage, _spans(tensor))

    def _content_of_result(self, tensor: Tensor) -> int:
        block = self._blocks.get(tensor.untyped_storage()._cdata)
        return DEFINED if block is None or not block.is_result else self.content(tensor)

    def copied(self, storage: torch.UntypedStorage, source: torch.UntypedStorage) -> None:
        """Note that all bytes of a storage are those of another one now."""
        known = self._blocks.get(source._cdata)
        self._blocks.pop(storage._cdata, None)
        if known is not None:
            block = self._blocks[storage._cdata] = _Block(storage, known.is_result)
            block.undefined.all = list(known.undefined.all)
            block.uncertain.all = list(known.uncertain.all)

    def look_at(self, storage: torch.UntypedStorage) -> None:
        """See what others have written of a storage that is about to be read or written."""
        block = self._blocks.get(storage._cdata)
        if block is not None:
            block.look(storage, True)
            self._drop_if_defined(storage)

    def called(
        self,
        effects: Effects,
        inputs: list[Tensor],
        written: list[Tensor],
        fresh: list[Tensor],
        undefined: bool,
    ) -> None:
        """Note what a call has written.

        Args:
            effects: those of its overload, which does not allocate.
            inputs: the tensors that it may have read.
            written: the arguments that it has written.
            fresh: the results in memory of their own.
            undefined: whether :meth:`read_by` said so before the call.
        """
        if effects.rebinds:
            return  # it writes no bytes
        if undefined:
            self.allocated(fresh)
            # What was defined is not hidden, though undefined bytes are in it now.
            self.written(t for t in filter(is_strided, written) if self.content(t) != UNDEFINED)
        elif self._blocks:
            self.written(fresh)
            # What was undefined in the place of an element stays so.
            if not effects.pointwise:
                self.written(written)
            else:
                self.written(t for t in written if not any(t is i for i in inputs))

    def spread(self, effects: Effects, inputs: list[Tensor], results: list[Tensor]) -> bool:
        """Note which elements of an elementwise call's results come from undefined ones.

        Returns:
            False if it is no such call, or if they are in too many pieces to follow.
        """
        if not effects.elementwise or effects.has_lists:
            return False
        results = [*filter(is_strided, results)]
        # What a copy overwrites it does not read.
        read = filter(is_strided, inputs[1:] if effects.copies else inputs)
        partly = [tensor for tensor in read if tensor.untyped_storage()._cdata in self._blocks]
        if any(tensor.numel() > _MOST_ELEMENTS for tensor in results):
            return False
        with without_modes():
            masks = [self._undefined_elements(tensor) for tensor in partly if tensor.numel()]
            spans = [_spans_of_elements(result, masks) for result in results]
        if any(len(pieces) > _MOST_PIECES for pieces in spans):
            return False
        for result, pieces in zip(results, spans):
            storage = result.untyped_storage()
            for begin, end in pieces:
                block = self._blocks.setdefault(storage._cdata, _Block(storage, True))
                block.undefined.add(begin, end)
        return True

    def _undefined_elements(self, tensor: Tensor) -> Tensor:
        """Return which elements are undefined: bool of the tensor's shape."""
        (begin, end), size = extent_of(tensor), tensor.itemsize
        elements = torch.zeros((end - begin) // size, dtype=torch.bool, device="cpu")
        for first, last in self._blocks[tensor.untyped_storage()._cdata].undefined.within(
            begin, end
        ):
            elements[(first - begin) // size : -(-(last - begin) // size)] = True
        return elements.as_strided(tensor.shape, tensor.stride())

    def forget_freed(self) -> None:
        """Drop what is known about storages that are gone."""
        self._blocks = {
            address: block
            for address, block in self._blocks.items()
            if not block.reference.expired()
        }


def _spans(tensor: Tensor) -> list[Span]:
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
        return [extent_of(tensor)]
    starts = sorted(begin + sum(offsets) for offsets in itertools.product(*rows))
    return [(start, start + length) for start in starts]


def _spans_of_elements(tensor: Tensor, masks: list[Tensor]) -> list[Span]:
    """Return the bytes of a tensor's elements that a mask marks; masks broadcast to it."""
    begin, end = extent_of(tensor)
    marked = torch.zeros((end - begin) // tensor.itemsize, dtype=torch.bool, device="cpu")
    view = marked.as_strided(tensor.shape, tensor.stride())
    for mask in masks:
        view |= mask
    changes = np.flatnonzero(np.diff(marked.numpy(), prepend=False, append=False))
    ends = (begin + changes * tensor.itemsize).tolist()
    return list(zip(ends[::2], ends[1::2]))
