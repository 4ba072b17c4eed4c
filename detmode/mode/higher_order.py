"""Higher-order operators: those that call functions, such as ``torch.cond``."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

BODIES = (torch.nn.Module, types.FunctionType, functools.partial, torch._ops.OpOverload)
"""The types of functions that a higher-order operator calls."""

_TRACERS = (
    torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
    torch._C._TorchDispatchModeKey.PROXY,
)
_MODES_SAY_SO = hasattr(TorchDispatchMode, "supports_higher_order_operators")


def is_tracing() -> bool:
    """Return whether PyTorch traces, to which the body of a higher-order operator is a graph."""
    return torch._C._len_torch_dispatch_stack() > 0 and any(
        torch._C._get_dispatch_mode(key) is not None for key in _TRACERS
    )


def hand_over_to(mode: type[TorchDispatchMode]) -> None:
    """Let modes of a type receive each higher-order operator known by now.

    Newer versions read ``supports_higher_order_operators`` of the mode instead.
    """
    if _MODES_SAY_SO:
        return
    for operator in torch._ops._higher_order_ops.values():
        if mode not in operator.python_key_table:
            operator.py_impl(mode)(functools.partial(_hand_over, operator))


def _hand_over(operator: Any, mode: TorchDispatchMode, *args: Any, **kwargs: Any) -> Any:
    return mode.__torch_dispatch__(operator, (), args, kwargs)
