"""Higher-order operators: those that call functions, such as ``torch.cond``."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import wrapt
from torch.utils._python_dispatch import TorchDispatchMode

from detmode.mode.dispatch_stack import acting

_BODIES = (torch.nn.Module, types.FunctionType, functools.partial, torch._ops.OpOverload)
"""The types of functions that a higher-order operator calls."""

_TRACERS = (
    torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
    torch._C._TorchDispatchModeKey.PROXY,
)
_MODES_SAY_SO = hasattr(TorchDispatchMode, "supports_higher_order_operators")


def with_bodies(mode: TorchDispatchMode, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a higher-order operator's arguments, of which the functions run under the mode.

    PyTorch would run them below the mode that receives the operator. They remain what they are to
    PyTorch, which looks at their types. Where it only traces, they are graphs to it, and stay so.
    """
    if torch._C._len_torch_dispatch_stack() and any(
        torch._C._get_dispatch_mode(key) is not None for key in _TRACERS
    ):
        return args

    def run(body: Callable[..., Any], _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with acting(mode):
            return body(*args, **kwargs)

    return tuple(
        wrapt.FunctionWrapper(arg, run) if isinstance(arg, _BODIES) else arg for arg in args
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
