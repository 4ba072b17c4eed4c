"""Copies of arguments, in memory of known values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

FILLS = (0xFF, 0x5A)
"""Bytes of memory that is not initialised: NaN or -1, and a large number."""


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
