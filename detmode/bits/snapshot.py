"""Copies of a call's arguments, with which the call can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from detmode.cuda.memory import COMPONENTS
from detmode.process.arguments import SCALARS, tensors_in
from detmode.process.extent import extent_of

_ALIGNMENT = 512
"""The CUDA allocator's alignment; kernels depend on an address only modulo this."""


def snapshot(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    whole: bool = False,
    in_place: bool = False,
    written: list[Tensor] | None = None,
) -> Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]:
    """Copy the arguments of a call that is about to be made.

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

    Returns:
        A function that returns the arguments as they were, in new memory each time.

    Raises:
        RuntimeError: a tensor is of another kind, such as a quantized one.
        torch.OutOfMemoryError: there is no memory for a copy.
    """
    # In new lists, since the caller may change its own.
    call: tuple[Any, Any] = _changed((args, kwargs), _itself)
    # By identity: an argument passed twice is one tensor in the copy too.
    # Of each tensor: its storage, its offset in the copy, and a view, since the call may resize the
    # tensor itself.
    views: dict[int, tuple[int, int, Tensor]] = {}
    sparse: dict[int, Tensor] = {}
    together: dict[int, list[Tensor]] = {}
    tensors = tensors_in((*args, *kwargs.values()))
    if written is not None:
        memory = {_memory_of(tensor) for tensor in written}
        tensors = [tensor for tensor in tensors if memory and _memory_of(tensor) in memory]
    for tensor in tensors:
        if COMPONENTS.get(tensor.layout):
            sparse[id(tensor)] = tensor.clone()
        elif tensor.layout != torch.strided or tensor.is_quantized:
            raise RuntimeError(f"{tensor.layout} tensor of {tensor.dtype}")
        elif not tensor._is_zerotensor():
            together.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    spans: dict[int, tuple[int, Tensor]] = {}
    for storage, tensors in together.items():
        begin, shift, content = _span(tensors, whole=whole, in_place=in_place)
        spans[storage] = shift, content
        for tensor in tensors:
            offset = int(tensor.storage_offset()) + (shift - begin) // tensor.itemsize
            views[id(tensor)] = storage, offset, tensor.detach()

    def copy() -> tuple[tuple[Any, ...], dict[str, Any]]:
        storages = {storage: _storage_of(*span) for storage, span in spans.items()}
        copies: dict[int, Tensor] = {}

        def copied(tensor: Tensor) -> Tensor:
            key = id(tensor)
            if key not in copies:
                copies[key] = tensor  # unless it is written, and has memory: zeros have none
                if key in sparse:
                    copies[key] = sparse[key].clone()
                elif key in views:
                    storage, offset, view = views[key]
                    copies[key] = _like(view, storages[storage], offset)
            return copies[key]

        copied_args, copied_kwargs = _changed(call, copied)
        return copied_args, copied_kwargs

    return copy


def _span(tensors: list[Tensor], *, whole: bool, in_place: bool) -> tuple[int, int, Tensor]:
    """Copy the part of a storage that a call's tensors use.

    Returns:
        The byte at which it begins, the one at which it is to begin in a copy, and its bytes.
    """
    storage = tensors[0].untyped_storage()
    reaches = [(0, storage.nbytes()) if whole else extent_of(tensor) for tensor in tensors]
    begin = min(begin for begin, _ in reaches)
    end = min(max(end for _, end in reaches), storage.nbytes())
    # The copy has the same alignment, because kernels choose their path by it.
    shift = (storage.data_ptr() + begin) % _ALIGNMENT
    if any((shift - begin) % tensor.itemsize for tensor in tensors):
        shift = begin % _ALIGNMENT
    live = torch.empty(0, dtype=torch.uint8, device=tensors[0].device)
    live.set_(storage, begin, (max(end - begin, 0),), (1,))
    return begin, begin if in_place else shift, live.clone()


def _storage_of(shift: int, content: Tensor) -> torch.UntypedStorage:
    """Return a new storage in which bytes begin at ``shift``."""
    memory = torch.empty(shift + len(content), dtype=torch.uint8, device=content.device)
    memory[shift:].copy_(content)
    return memory.untyped_storage()


def _like(view: Tensor, storage: torch.UntypedStorage, offset: int) -> Tensor:
    """Return the tensor in a storage that has all but the memory of a view."""
    new = torch.empty(0, dtype=view.dtype, device=view.device)
    new.set_(storage, offset, view.shape, view.stride())
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
