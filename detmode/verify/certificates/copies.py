"""Copies of arguments, and new memory with known values in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detmode.bits.effects import effects_of

FILLS = (0xFF, 0x5A)
"""Bytes of memory that is not initialised: NaN or -1, and a large number."""

EMPTY = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}


def copies_of(
    arguments: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, torch.Tensor], list[torch.UntypedStorage]]:
    """Copy a call's arguments to the CPU; tensors that share memory still do.

    Args:
        arguments: by name: tensors, lists and tuples of them, tensor descriptors, other values.

    Returns:
        The copies by name; the tensors among them, by names such as ``"x"`` and ``"xs[0]"``; and
        their storages.
    """
    tensors: dict[str, torch.Tensor] = {}
    storages: dict[tuple[int, int], torch.UntypedStorage] = {}

    def copied(name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors[name] = _in_copies(value, storages)
            return tensors[name]
        if isinstance(value, (list, tuple)):
            parts = [copied(f"{name}[{i}]", part) for i, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if dataclasses.is_dataclass(value) and hasattr(value, "base"):  # a tensor descriptor
            return dataclasses.replace(value, base=copied(name, value.base))  # type: ignore[type-var]
        return value

    copies = {name: copied(name, value) for name, value in arguments.items()}
    return copies, tensors, list(storages.values())


def _in_copies(
    tensor: torch.Tensor, storages: dict[tuple[int, int], torch.UntypedStorage]
) -> torch.Tensor:
    """Return a tensor in the copy of its storage, which is made once."""
    storage = tensor.untyped_storage()
    key = storage.data_ptr(), storage.nbytes()
    copy = storages.get(key)
    if copy is None:
        copy = storages[key] = storage.clone() if storage.device.type == "cpu" else storage.cpu()
    result = torch.empty(0, dtype=tensor.dtype, device="cpu")
    return result.set_(copy, tensor.storage_offset(), tensor.size(), tensor.stride())


def as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a storage as a tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)


class NewMemory(TorchDispatchMode):
    """Fill every byte of new memory, also inside operators that are written in Python."""

    def __init__(self, byte: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
        self.byte = byte

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Make a call; those that operators' implementations make come here as well."""
        if func.namespace == "aten":
            result = func(*args, **(kwargs or {}))
            if effects_of(func).gives_new_memory:
                as_bytes(result.untyped_storage()).fill_(self.byte)
            return result
        # Below the key of this mode, which an operator's own calls shall reach.
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        key = "CPU" if has(func.name(), "CPU") or not has(func.name(), "CUDA") else "CUDA"
        with self:
            return func.redispatch(
                torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)), *args, **(kwargs or {})
            )
