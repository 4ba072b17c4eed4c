"""Higher-order operators under the mode, for the PyTorch versions whose modes cannot say so."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_MODES_SAY_SO = hasattr(TorchDispatchMode, "supports_higher_order_operators")


def register_passthrough(mode: type[TorchDispatchMode]) -> None:
    """Register, for ``mode``, that each higher-order operator known by now runs as without it.

    Newer versions read ``supports_higher_order_operators`` of the mode instead.
    """
    if _MODES_SAY_SO:
        return
    for operator in torch._ops._higher_order_ops.values():
        if mode not in operator.python_key_table:
            operator.py_impl(mode)(functools.partial(_pass, operator))


def _pass(operator: Any, mode: TorchDispatchMode, *args: Any, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)
