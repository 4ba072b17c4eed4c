"""Operators of other libraries: what their kernels call, a mode is to receive as well.

Such a kernel is the body of a ``torch.library.custom_op``, or C++ that calls ATen. PyTorch runs it
below the mode that receives the operator, which would see nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from detmode.mode.dispatch_stack import acting
from detmode.process.dispatch import CompiledInside, autocast_inside, traced_inside

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_BELOW_MODES = torch._C._dispatch_keyset_full_after(DispatchKey.Python)
_FOR_ALL_BACKENDS = (
    DispatchKey.CompositeExplicitAutogradNonFunctional,
    DispatchKey.CompositeExplicitAutograd,
)
_NO_DISPATCH = Tensor.__torch_dispatch__


def kernel_key(func: torch._ops.OpOverload, tensors: Iterable[Tensor]) -> DispatchKey | None:
    """Return the key of the kernel that PyTorch runs for a call below the modes.

    Args:
        func: the operator.
        tensors: those among the arguments of the call.

    Returns:
        ``None`` if nothing is computed there (meta tensors), if tensors have classes of their own,
        or if no kernel is registered for the operator itself.
    """
    keys = torch._C.DispatchKeySet(DispatchKey.Undefined)
    for tensor in tensors:
        if type(tensor).__torch_dispatch__ is not _NO_DISPATCH:
            return None
        keys = keys | torch._C._dispatch_keys(tensor)
    backend = (keys & _BELOW_MODES).highestPriorityTypeId()
    if backend == DispatchKey.Meta:
        return None
    if backend == DispatchKey.Undefined:
        backend = DispatchKey.BackendSelect
    name = func.name()
    return next((key for key in (backend, *_FOR_ALL_BACKENDS) if _has_kernel(name, key)), None)


def run_kernel(
    mode: TorchDispatchMode,
    func: torch._ops.OpOverload,
    key: DispatchKey,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run the kernel that an operator has at a key; the mode receives what it calls."""
    with acting(mode), autocast_inside(func), traced_inside(func):
        return func._op_dk(key, *args, **kwargs)


def foreign_mode() -> TorchDispatchMode | None:
    """Return a mode around the acting one that is not detmode's: it expects operators whole."""
    modes = _get_current_dispatch_mode_stack()
    return next((mode for mode in modes if not isinstance(mode, CompiledInside)), None)


def is_infrastructure(mode: TorchDispatchMode) -> bool:
    """Return whether a mode is one by which PyTorch traces, and computes nothing."""
    return getattr(mode, "_mode_key", None) is not None
