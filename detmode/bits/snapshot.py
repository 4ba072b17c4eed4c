"""A copy of a call's arguments, from which the call can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from detmode.bits.tensors import SPARSE_PARTS
from detmode.process.arguments import SCALARS, tensors_in
from detmode.process.extent import extent_of

_ALIGNMENT = 512
"""The CUDA allocator's alignment; kernels depend on an address only modulo this."""


class _Span:
    """The part of a storage that a call's tensors use: a copy of its bytes."""

    def __init__(self, tensors: list[Tensor], *, whole: bool, in_place: bool) -> None:
        storage = tensors[0].untyped_storage()
        reaches = [(0, storage.nbytes()) if whole else extent_of(tensor) for tensor in tensors]
        self.begin = min(begin for begin, _ in reaches)
        end = min(max(end for _, end in reaches), storage.nbytes())
        # The copy has the same alignment, because kernels choose their path by it.
        self.shift = (storage.data_ptr() + self.begin) % _ALIGNMENT
        if any((self.shift - self.begin) % tensor.itemsize for tensor in tensors):
            self.shift = self.begin % _ALIGNMENT
        if in_place:
            self.shift = self.begin
        n_bytes = max(end - self.begin, 0)
        live = torch.empty(0, dtype=torch.uint8, device=tensors[0].device)
        live.set_(storage, self.begin, (n_bytes,), (1,))
        self._bytes = live.clone()

    def copy(self) -> torch.UntypedStorage:
        """Return a new storage; the bytes begin at ``shift``."""
        source = self._bytes
        whole = torch.empty(self.shift + len(source), dtype=torch.uint8, device=source.device)
        whole[self.shift :].copy_(source)
        return whole.untyped_storage()


class Snapshot:
    """The arguments of a call that is about to be made.

    Storages are copied rather than tensors, so that each copy keeps the strides, overlaps and
    aliases of the arguments.

    Args:
        args: the call's positional arguments; its tensors are strided or sparse.
        kwargs: the call's keyword arguments.
        whole: copy whole storages, not only the bytes that the tensors reach.
        in_place: leave the bytes where they are in their storages, as the call counts from their
            beginning. Otherwise they lie as to be read alike.
        written: the tensors that the call may write. Those that share no memory with one of them
            are not copied: the copied arguments have the tensors themselves. ``None`` copies all.

    Raises:
        RuntimeError: a tensor is of another kind, such as a quantized one.
        torch.OutOfMemoryError: there is no memory for a copy.
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        whole: bool = False,
        in_place: bool = False,
        written: list[Tensor] | None = None,
    ) -> None:
        # In new lists, since the caller may change its own.
        self._call: tuple[Any, Any] = _changed((args, kwargs), _itself)
        # By identity: an argument passed twice is one tensor in the copy too.
        # Of each tensor: its storage, its offset in the copy, and a view, since the call may resize
        # the tensor itself.
        self._views: dict[int, tuple[int, int, Tensor]] = {}
        self._sparse: dict[int, Tensor] = {}
        together: dict[int, list[Tensor]] = {}
        tensors = tensors_in((*args, *kwargs.values()))
        if written is not None:
            memory = {_memory_of(tensor) for tensor in written}
            tensors = [tensor for tensor in tensors if memory and _memory_of(tensor) in memory]
        for tensor in tensors:
            if tensor.layout in SPARSE_PARTS:
                self._sparse[id(tensor)] = tensor.clone()
            elif tensor.layout != torch.strided or tensor.is_quantized:
                raise RuntimeError(f"{tensor.layout} tensor of {tensor.dtype}")
            elif not tensor._is_zerotensor():
                together.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
        self._spans: dict[int, _Span] = {}
        for storage, tensors in together.items():
            span = self._spans[storage] = _Span(tensors, whole=whole, in_place=in_place)
            for tensor in tensors:
                offset = int(tensor.storage_offset()) + (span.shift - span.begin) // tensor.itemsize
                self._views[id(tensor)] = storage, offset, tensor.detach()

    def copy(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments as they were, in new memory."""
        storages = {number: span.copy() for number, span in self._spans.items()}
        copies: dict[int, Tensor] = {}

        def copied(tensor: Tensor) -> Tensor:
            if id(tensor) not in copies:
                copies[id(tensor)] = self._tensor(tensor, storages)
            return copies[id(tensor)]

        args, kwargs = _changed(self._call, copied)
        return args, kwargs

    def _tensor(self, tensor: Tensor, storages: dict[int, torch.UntypedStorage]) -> Tensor:
        sparse = self._sparse.get(id(tensor))
        if sparse is not None:
            return sparse.clone()
        if id(tensor) not in self._views:
            return tensor  # it is not written, or has no memory: zeros
        number, offset, view = self._views[id(tensor)]
        new = torch.empty(0, dtype=view.dtype, device=view.device)
        new.set_(storages[number], offset, view.shape, view.stride())
        new = torch._conj(new) if view.is_conj() else new
        return torch._neg_view(new) if view.is_neg() else new


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return arguments with each tensor changed, in new lists and dicts."""
    if type(value) in SCALARS:
        return value
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _changed(item, change) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        changed = [_changed(item, change) for item in value]
        return changed if isinstance(value, list) else tuple(changed)
    return value


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _memory_of(tensor: Tensor) -> int:
    """Return what tensors that share memory have in common."""
    strided = tensor.layout == torch.strided and not tensor._is_zerotensor()
    return tensor.untyped_storage()._cdata if strided else id(tensor)
