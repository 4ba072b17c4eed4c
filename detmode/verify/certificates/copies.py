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


class Copies:
    """Copies of a call's arguments on the CPU; tensors that share memory still do.

    Args:
        arguments: by name: tensors, lists and tuples of them, tensor descriptors, other values.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.storages: dict[tuple[int, int], torch.UntypedStorage] = {}
        self.arguments = {name: self._copy(name, value) for name, value in arguments.items()}

    def _copy(self, name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            key = storage.data_ptr(), storage.nbytes()
            copy = self.storages.get(key)
            if copy is None:
                copy = storage.clone() if storage.device.type == "cpu" else storage.cpu()
                self.storages[key] = copy
            tensor = torch.empty(0, dtype=value.dtype, device="cpu")
            tensor.set_(copy, value.storage_offset(), value.size(), value.stride())
            self.tensors[name] = tensor
            return tensor
        if isinstance(value, (list, tuple)):
            copies = [self._copy(f"{name}[{i}]", one) for i, one in enumerate(value)]
            return type(value)(*copies) if hasattr(value, "_fields") else type(value)(copies)
        if dataclasses.is_dataclass(value) and hasattr(value, "base"):  # a tensor descriptor
            return dataclasses.replace(value, base=self._copy(name, value.base))  # type: ignore[type-var]
        return value


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
