"""The state of PyTorch's dispatcher in which a mode makes the calls that it receives."""

from __future__ import annotations

import functools
import threading

import torch
import torch._dynamo.trace_rules

from detmode.cuda.undo import Undo

# Dynamo would trace the modes' own functions, which change the state of the process, when a block
# is inside a compiled function, or when a mode receives a call between two graphs. It breaks the
# graph there instead.
torch._dynamo.trace_rules.add("detmode")

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
    """Resolve conjugate and negative views in all calls that a ``__torch_dispatch__`` makes.

    PyTorch passes a call to a mode with every key above ``Python`` excluded. A kernel that
    conjugates a tensor and calls another operator with it, such as ``torch.linalg.pinv``, would
    continue with numbers that are not conjugated (pytorch#198118).

    Nothing is restored here: PyTorch's guard, which excluded the keys, ends with the mode's call,
    or with the call of the outer mode that made it.
    """
    resolve_conjugates()
    resolve_negatives()


class _Thread(threading.local):
    is_cast: bool = False
    """True while the thread is in an operator whose arguments autocast has cast."""


_thread = _Thread()


class autocast_inside(Undo):
    """Apply autocast inside a composite operator, as it applies without a mode.

    In inference mode a mode receives composite operators whole, with autocast's keys excluded, so
    the calls inside ``torch.einsum`` would not be cast. An operator that autocast itself lists was
    cast before the mode received it, and its inner calls are not cast again.
    """

    def __init__(self, func: torch._ops.OpOverload) -> None:
        Undo.__init__(self)
        self._func = func

    def __enter__(self) -> None:
        if _thread.is_cast or not torch.is_inference_mode_enabled():
            return
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
