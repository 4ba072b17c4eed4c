"""A mode that decides what new memory holds, so that reading it unwritten shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from detmode.bits.effects import effects_of
from detmode.bits.tensors import bytes_of
from detmode.mode.foreign_kernels import kernel_key, run_kernel
from detmode.mode.higher_order import hand_over_to, with_bodies
from detmode.process.arguments import tensors_in
from detmode.process.dispatch import (
    CompiledInside,
    autocast_inside,
    caller_of,
    is_foreign,
    resolve_views,
    with_tensors,
)

_count_modes = torch._C._len_torch_dispatch_stack

KeyOf = Callable[[torch._ops.OpOverload, Iterable[Tensor]], "torch._C.DispatchKey | None"]
"""Returns the key of the kernel that runs for an operator and the tensors of a call."""


class FilledMemory(CompiledInside):
    """Fills the memory that ``torch.empty`` and similar operators return with a byte.

    It sees what the kernels of other libraries' operators, and of the program's own, allocate;
    unless it is entered inside another mode, which is to receive these operators whole.

    Args:
        byte: the content.
        key_of: says which kernel of such an operator runs; ``None`` for the one that PyTorch finds.
    """

    supports_higher_order_operators = True

    def __init__(self, byte: int, key_of: KeyOf = kernel_key) -> None:
        TorchDispatchMode.__init__(self)
        self._byte = byte
        self._key_of = key_of

    def __enter__(self) -> FilledMemory:
        hand_over_to(type(self))
        TorchDispatchMode.__enter__(self)
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        resolve_views()
        if not isinstance(func, torch._ops.OpOverload):
            return func(*with_bodies(self, args), **kwargs)
        args = with_tensors(func, args)
        if is_foreign(func) and not _count_modes():
            key = self._key_of(func, tensors_in((*args, *kwargs.values())))
            if key is not None:
                return run_kernel(self, func, key, *args, **kwargs)
        with autocast_inside(func):
            result = caller_of(func)(*args, **kwargs)
        if (
            effects_of(func).gives_new_memory
            and type(result) is Tensor
            and not result.is_meta
            and result.layout == torch.strided
        ):
            # A bool must hold 0 or 1.
            byte = self._byte & 1 if result.dtype == torch.bool else self._byte
            bytes_of(result.untyped_storage()).fill_(byte)
        return result
