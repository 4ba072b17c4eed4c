"""Kernels that call operators, which a mode is to receive as well.

They are those of composite operators, and of other libraries' operators: the body of a
``torch.library.custom_op``, or C++ that calls ATen. PyTorch runs a kernel below the mode that
receives the operator, which would see nothing of it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from detmode.mode.base_mode import BaseMode
from detmode.mode.dispatch_stack import acting
from detmode.mode.handled import Handled
from detmode.mode.overload_info import COMPOSITE, OverloadInfo
from detmode.process.arguments import tensors_in
from detmode.process.dispatch import CompiledInside, autocast_inside, traced_inside
from detmode.process.torch_settings import deterministic_flag
from detmode.sites.forward_memory import ForwardMemory
from detmode.sites.observers import observer

__tracebackhide__ = True

_count_modes = torch._C._len_torch_dispatch_stack
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_BELOW_MODES = torch._C._dispatch_keyset_full_after(DispatchKey.Python)
_FOR_ALL_BACKENDS = (
    DispatchKey.CompositeExplicitAutogradNonFunctional,
    DispatchKey.CompositeExplicitAutograd,
)
_NO_DISPATCH = Tensor.__torch_dispatch__


def kernel_key(func: torch._ops.OpOverload, tensors: Iterable[Tensor]) -> DispatchKey | None:
    """Return the key of the kernel that PyTorch runs for a call below the modes.

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
    receiver: TorchDispatchMode,
    func: torch._ops.OpOverload,
    key: DispatchKey,
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run the kernel that an operator has at a key; ``receiver`` receives what it calls."""
    with acting(receiver), autocast_inside(func), traced_inside(func):
        return func._op_dk(key, *args, **kwargs)


def _foreign_mode() -> TorchDispatchMode | None:
    """Return a mode around the acting one that is not detmode's: it expects operators whole."""
    modes = _get_current_dispatch_mode_stack()
    return next((mode for mode in modes if not isinstance(mode, CompiledInside)), None)


def _is_infrastructure(mode: TorchDispatchMode) -> bool:
    """Return whether a mode is one by which PyTorch traces, and computes nothing."""
    return getattr(mode, "_mode_key", None) is not None


def decompose(
    receiver: TorchDispatchMode,
    overload: OverloadInfo,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a composite operator, which ``receiver`` receives whole in inference mode, under it.

    ATen's decomposition runs. PyTorch also has some in Python, for tracing, which round
    differently or draw other random numbers. Some composites have kernels as well
    (``silu_backward``; ``linear``, for nested tensors), which ATen runs.
    """
    if overload.kernels:
        for tensor in tensors_in((*args, *kwargs.values())):
            if (tensor.device.type, tensor.is_nested) in overload.kernels:
                return overload.func(*args, **kwargs)
    return run_kernel(receiver, overload.func, COMPOSITE, *args, **kwargs)


def run_foreign(
    call: Handled, receiver: TorchDispatchMode, mode: BaseMode, memory: ForwardMemory
) -> Any:
    """Make a call of another library's operator; ``receiver`` receives what its kernel calls."""
    if memory.had_regions and memory.allows(call):
        with deterministic_flag(False):
            return call.run()
    func = call.func
    mode.unlisted[func._schema.name] = None
    key = kernel_key(func, call.tensors)
    if key is None:
        return call.run()
    if not _count_modes():
        return run_kernel(receiver, func, key, *call.args, **call.kwargs)
    if (outer := _foreign_mode()) is not None:
        if not _is_infrastructure(outer):
            mode.say_once(
                f"{func.name()} in {type(outer).__name__}",
                f"what the kernel of {func.name()} calls is not seen: {type(outer).__name__} is "
                "entered around DeterministicMode; enter it inside",
            )
        return call.run()
    run = functools.partial(run_kernel, receiver, func, key)
    seen_by = observer()
    if seen_by is None:
        return run(*call.args, **call.kwargs)
    return seen_by.observe(func, call.args, call.kwargs, run)
