"""The state of PyTorch's dispatcher in which a mode makes the calls that it was handed."""

from __future__ import annotations

import torch

_set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded
_CONJUGATE = torch._C.DispatchKey.Conjugate
_NEGATIVE = torch._C.DispatchKey.Negative


def resolve_views() -> None:
    """Have conjugate and negative views resolved in all that a ``__torch_dispatch__`` calls.

    PyTorch hands a call to a mode with every key above ``Python`` excluded. A kernel that
    conjugates a tensor and calls another operator with it, as ``torch.linalg.pinv`` does, would go
    on with numbers that are not conjugated (pytorch#198118).

    Nothing is put back: PyTorch's guard, which excluded the keys, ends when the mode's call does,
    or, where another mode made the call while it was handed one, when that mode's call does.
    """
    _set_excluded(_CONJUGATE, False)
    _set_excluded(_NEGATIVE, False)
