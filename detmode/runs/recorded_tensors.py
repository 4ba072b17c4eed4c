"""The tensors of a recording: their forms, their digests, and those that are not finished yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, TypeAlias

from torch import Tensor

from detmode.bits.digest_batches import Digests
from detmode.bits.tensors import form_of, is_strided, to_digest
from detmode.process.dispatch import without_modes
from detmode.runs.trace_file import partly_uninitialized
from detmode.runs.unwritten import DEFINED, PARTLY, UNDEFINED, Memory

Added: TypeAlias = tuple[list[int], list[int]]
"""For each tensor, the number of its form in the trace, and the number of its digest."""


def storage_of(tensor: Tensor) -> int:
    """Return what tensors that share memory have in common; 0 if it has no strides."""
    return tensor.untyped_storage()._cdata if is_strided(tensor) else 0


class RecordedTensors:
    """Digests tensors, with what is known of their memory.

    Args:
        memory: of the run.
        skips: whether the run is in a step that is not recorded, so that nothing is added.

    Attributes:
        number: returns the number that stands for a text in the trace; to be set.
    """

    number: Callable[[str], int]

    def __init__(self, memory: Memory, *, skips: bool) -> None:
        self.digests = Digests()
        self.skips = skips
        # By storage, the results of collectives that no call has used yet: the numbers of their
        # digests, and whether the caller waited for them.
        self.pending: dict[int, list[tuple[int, Tensor, bool]]] = {}
        self._memory = memory
        self._forms: dict[Any, int] = {}

    def add(self, tensors: Iterable[Tensor], *, really: bool = False) -> Added:
        """Add the tensors' digests; if ``really``, those of undefined memory too."""
        forms: list[int] = []
        numbers: list[int] = []
        if self.skips:
            return forms, numbers
        for tensor in tensors:
            strided = is_strided(tensor)
            content = self._memory.content(tensor) if strided else DEFINED
            if not strided:
                numbers.append(self._add_converted(tensor))
            elif self.pending and (unfinished := self.pending.get(storage_of(tensor))):
                numbers.append(self.digests.add_undefined())
                unfinished.append((numbers[-1], tensor, unfinished[0][2]))
                content = DEFINED
            elif content == DEFINED or really:
                content = PARTLY if content else DEFINED
                add = self._add_converted if tensor.is_quantized else self.digests.add
                numbers.append(add(tensor))
            elif content == UNDEFINED or tensor.is_quantized:
                numbers.append(self.digests.add_undefined())
            else:
                numbers.append(self.digests.add(self._memory.defined_part(tensor)))
            forms.append(self.form(tensor, content, strided=strided))
        return forms, numbers

    def _add_converted(self, tensor: Tensor) -> int:
        with without_modes():
            return self.digests.add(to_digest(tensor))

    def add_pending(self, tensors: list[Tensor], waited_for: bool) -> Added:
        """Add the results of a collective, which are digested when they are next used."""
        if self.skips:
            return [], []
        forms, numbers = self.add(tensor for tensor in tensors if not is_strided(tensor))
        for tensor in filter(is_strided, tensors):
            forms.append(self.form(tensor))
            numbers.append(self.digests.add_undefined())
            entry = (numbers[-1], tensor, waited_for)
            self.pending.setdefault(storage_of(tensor), []).append(entry)
        return forms, numbers

    def complete(self, tensors: Iterable[Tensor]) -> None:
        """Digest pending results that share memory with tensors about to be read or written.

        A program that uses them has waited for them.
        """
        for tensor in tensors:
            self.complete_storage(storage_of(tensor))

    def complete_storage(self, storage: int) -> None:
        """Digest the pending results in a storage."""
        for number, result, _ in self.pending.pop(storage, ()):
            self.digests.replace(number, result)

    def awaited(self) -> list[Tensor]:
        """Return the pending results for which the caller waited."""
        return [result for _, result, waited in chain(*self.pending.values()) if waited]

    def defined(self, tensors: list[Tensor]) -> list[Tensor | None]:
        """Return ``None`` for each tensor of whose content nothing can be said, or not yet."""
        return [None if self._is_undefined(tensor) else tensor for tensor in tensors]

    def _is_undefined(self, tensor: Tensor) -> bool:
        return is_strided(tensor) and (
            storage_of(tensor) in self.pending or self._memory.content(tensor) == UNDEFINED
        )

    def form(self, tensor: Tensor, content: int = DEFINED, *, strided: bool = True) -> int:
        """Return the number of a tensor's form, which says so if it is uninitialized in part."""
        # For a tensor without strides, the text of the form is the key.
        look = (tensor.dtype, tensor.shape, tensor.stride(), tensor.device) if strided else None
        key = (look or form_of(tensor), content)
        form = self._forms.get(key)
        if form is None:
            text = form_of(tensor)
            if content == PARTLY:
                text = partly_uninitialized(text)
            form = self._forms[key] = self.number(text)
        return form
