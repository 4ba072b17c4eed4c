"""The state of PyTorch's dispatcher in which a mode makes the calls that it receives."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch._C._dynamo import eval_frame
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from detmode.cuda.undo import Calls, Undo
from detmode.environment.versions import parse_version

F = TypeVar("F", bound=Callable[..., Any])

own_calls = Calls()
"""Calls of detmode's own: registered kernels do not intercept what is called in them."""

_count_modes = torch._C._len_torch_dispatch_stack
_count_early_modes: Callable[[], int] = torch._ops._len_torch_dispatch_stack_pre_dispatch
# For resolve_views, and for who cannot spare a call of it.
set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded
CONJUGATE, NEGATIVE = torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
# Autocast's keys, by the type of device.
_AUTOCAST = {
    device_type: getattr(torch._C.DispatchKey, f"Autocast{device_type.upper()}")
    for device_type in ("cpu", "cuda", "mps", "xpu")
}


def untraced(function: F) -> F:
    """Keep Dynamo out of a function, and of all that it calls: it changes the process's state.

    As ``torch.compiler.disable`` does, which would import the compiler, and whose wrapper costs two
    calls in Python at each call.
    """
    # Asked where a function that is being traced calls it, and where Python does.
    setattr(function, "_torchdynamo_disable", True)  # noqa: B010  # functions have no such field
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    return function


_STEALS = parse_version(torch.__version__) < (2, 12)


def carry(key: str, value: object) -> None:
    """Keep a value for this thread, and for the autograd threads of the backward that it calls."""
    if _STEALS:
        # Up to PyTorch 2.11 it drops a reference that it has not taken.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    torch._C._stash_obj_in_tls(key, value)


def carried(key: str) -> Any:
    """Return what :func:`carry` keeps here; ``None`` if nothing."""
    return torch._C._get_obj_in_tls(key) if torch._C._is_key_in_tls(key) else None


class without_modes(Undo):
    """Turn off, for this thread, all that intercepts calls: dispatch modes and kernels."""

    def __enter__(self) -> None:
        own_calls.count(self)
        # A call that a mode receives mostly has no other mode left, and PyTorch's block takes 5 us.
        if _count_modes() or _count_early_modes():
            off = _disable_current_modes()
            # Unlike its __exit__, this may run twice, or without its block.
            self.note(off.gen.close)
            off.__enter__()


class CompiledInside(TorchDispatchMode):
    """A mode inside which functions given to ``torch.compile`` stay compiled.

    Inside any other mode Dynamo runs a function operator by operator, and never compiles it
    afterwards.
    """

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return true: Dynamo compiles inside the mode, which receives the calls of the code."""
        return True

    if not hasattr(TorchDispatchMode, "ignore_compile_internals"):
        # PyTorch 2.8 and 2.9 ask this instead.
        is_infra_mode = ignore_compile_internals


def compiled_as_outside() -> AbstractContextManager[object]:
    """Return a block in which a function given to ``torch.compile`` is always run alike.

    PyTorch 2.8 and 2.9 would compile it anew at each call inside a mode, until they give up. There
    it runs operator by operator, and is compiled outside of the block.
    """
    if hasattr(TorchDispatchMode, "ignore_compile_internals"):
        return nullcontext()
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance


def resolve_views() -> None:
    """Resolve conjugate and negative views in all calls that a ``__torch_dispatch__`` makes.

    PyTorch passes a call to a mode with every key above ``Python`` excluded. A kernel that
    conjugates a tensor and calls another operator with it, such as ``torch.linalg.pinv``, would
    continue with numbers that are not conjugated (pytorch#198118).

    Nothing is restored here: PyTorch's guard, which excluded the keys, ends with the mode's call,
    or with the call of the outer mode that made it.
    """
    set_excluded(CONJUGATE, False)
    set_excluded(NEGATIVE, False)


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
            self.note(functools.partial(set_excluded, key, True))
            set_excluded(key, False)
