"""The state of PyTorch's dispatcher in which a mode makes the calls that it was handed."""

from __future__ import annotations

import functools
import threading

import torch

from detmode.cuda.undo import Undo, leaving, undone_at_end

_set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded
# The two halves of resolve_views, for who cannot spare a call in Python.
resolve_conjugates = functools.partial(_set_excluded, torch._C.DispatchKey.Conjugate, False)
resolve_negatives = functools.partial(_set_excluded, torch._C.DispatchKey.Negative, False)
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
# Autocast's keys, by the type of device.
_AUTOCAST = {
    device_type: getattr(torch._C.DispatchKey, f"Autocast{device_type.upper()}")
    for device_type in ("cpu", "cuda", "mps", "xpu")
}


def resolve_views() -> None:
    """Have conjugate and negative views resolved in all that a ``__torch_dispatch__`` calls.

    PyTorch hands a call to a mode with every key above ``Python`` excluded. A kernel that
    conjugates a tensor and calls another operator with it, as ``torch.linalg.pinv`` does, would go
    on with numbers that are not conjugated (pytorch#198118).

    Nothing is put back: PyTorch's guard, which excluded the keys, ends when the mode's call does,
    or, where another mode made the call while it was handed one, when that mode's call does.
    """
    resolve_conjugates()
    resolve_negatives()


class _Thread(threading.local):
    is_cast: bool = False
    """Whether the thread is in an operator whose arguments autocast has cast."""


_thread = _Thread()


class autocast_inside(Undo):
    """Have autocast act in a composite operator that came whole, as it does without a mode.

    In inference mode a composite operator comes whole, and autocast's keys are among those that
    are excluded: what ``torch.einsum`` calls would not be cast. An operator that autocast itself
    knows was cast before it came, and what it is made of is not cast again.
    """

    def __init__(self, func: torch._ops.OpOverload) -> None:
        Undo.__init__(self)
        self._func = func

    def __enter__(self) -> None:
        if _thread.is_cast or not torch.is_inference_mode_enabled():
            return
        undone_at_end(self, self)
        # The state in which the program made the call.
        with torch._C._RestorePythonTLSSnapshot():  # type: ignore[attr-defined]  # it has no types
            keys = [key for name, key in _AUTOCAST.items() if torch.is_autocast_enabled(name)]
        if any(_has_kernel(self._func.name(), key) for key in keys):
            self.note(functools.partial(setattr, _thread, "is_cast", False))
            _thread.is_cast = True
            return
        for key in keys:
            self.note(functools.partial(_set_excluded, key, True))
            _set_excluded(key, False)

    def _leave(self, *error: object) -> None:
        self.run()

    __exit__ = leaving(_leave)
