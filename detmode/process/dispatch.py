"""The state of PyTorch's dispatcher in which a mode makes the calls that it receives."""

from __future__ import annotations

import ctypes
import functools
import inspect
import operator
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch._C._dynamo import eval_frame
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from detmode.process.threads import note_thread
from detmode.process.undo import Calls, Undo
from detmode.process.versions import parse_version

F = TypeVar("F", bound=Callable[..., Any])

own_calls = Calls()
"""Calls of detmode's own: registered kernels do not intercept what is called in them."""

_count_modes = torch._C._len_torch_dispatch_stack
_count_early_modes: Callable[[], int] = torch._ops._len_torch_dispatch_stack_pre_dispatch
# For resolve_views, and for who cannot spare a call of it.
set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded
CONJUGATE, NEGATIVE = torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_get_trace = torch._C._get_tracing_state
_ZERO_TENSOR = torch._C.DispatchKey.ZeroTensor
_TRACER: Any = torch._C._parse_dispatch_key("Tracer")
_takes_numbers = torch._C._should_allow_numbers_as_tensors
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
_TENSOR_TYPES = ("Tensor", "Optional[Tensor]")
_NOTHING = nullcontext()
_TRACED_INSIDE = frozenset(
    f"aten::{name}"
    for name in (
        "_coalesced",
        *("conv1d", "conv2d", "conv3d", "convolution"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("gru_cell", "lstm_cell", "rnn_relu_cell", "rnn_tanh_cell"),
    )
)
"""Operators that ``torch.jit.trace`` does not record: it records those that they are made of."""
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


def untrace_dispatch(mode: type[TorchDispatchMode]) -> None:
    """Keep Dynamo out of the ``__torch_dispatch__`` that a class defines, at no cost.

    PyTorch has wrapped it to do the same.
    """
    # The same function, marked: mypy takes any assignment to a method for a mistake.
    mode.__torch_dispatch__ = untraced(inspect.unwrap(mode.__torch_dispatch__))  # type: ignore[method-assign]


_STEALS = parse_version(torch.__version__) < (2, 12)


def carry(key: str, value: object) -> None:
    """Keep a value for this thread, and for the autograd threads of the backward that it calls."""
    if _STEALS:
        # Up to PyTorch 2.11 it drops a reference that it has not taken.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    torch._C._stash_obj_in_tls(key, value)
    note_thread()


def carried(key: str) -> Any:
    """Return what :func:`carry` keeps here; ``None`` if nothing."""
    return torch._C._get_obj_in_tls(key) if torch._C._is_key_in_tls(key) else None


def without_modes() -> Undo:
    """Turn off, for this thread, all that intercepts calls: dispatch modes and kernels."""
    return Undo(_turn_modes_off)


def _turn_modes_off(undo: Undo) -> None:
    own_calls.count(undo)
    # A call that a mode receives mostly has no other mode left, and PyTorch's block takes 5 us.
    if _count_modes() or _count_early_modes():
        off = _disable_current_modes()
        # Unlike its __exit__, this may run twice, or without its block.
        undo.note(off.gen.close)
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
    paused_trace: Any = None
    """The state of ``torch.jit.trace`` while it records nothing."""


_thread = _Thread()


_NAMESPACES = frozenset(
    (
        *("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_inductor_test", "_native"),
        *("_quantized", "_test", "aten", "c10d", "c10d_functional", "cplib", "debug_mode_ops"),
        *("debugprims", "detmode_twin", "export", "flex_lib", "fsdp", "higher_order", "inductor"),
        *("inductor_prims", "metal", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "onnx"),
        *("onnx_symbolic", "prepacked", "prim", "prims", "profiler", "quantization", "quantized"),
        *("quantized_decomposed", "rngprims", "sparse", "static_runtime", "streams", "symm_mem"),
        *("vulkan", "vulkan_prepack", "xnnpack"),
    )
)
"""The namespaces of the operators that PyTorch itself brings, and of the twins of listed ones."""


def is_foreign(func: torch._ops.OpOverload) -> bool:
    """Return whether an operator is another library's, or the program's own."""
    return func.namespace not in _NAMESPACES


def trace_paused() -> Undo:
    """Keep what a mode does for itself out of the graph that ``torch.jit.trace`` records.

    While it records, sizes are tensors to Python, and each value that Python reads is a warning.
    """
    return Undo(_pause_trace)


def _pause_trace(undo: Undo) -> None:
    trace = _get_trace()
    if trace is not None:
        undo.note(functools.partial(_set_trace, trace))
        undo.note(functools.partial(setattr, _thread, "paused_trace", None))
        _thread.paused_trace = trace
        _set_trace(None)


def _set_trace(trace: Any) -> None:
    """Set the state of ``torch.jit.trace``, which PyTorch refuses while the key is excluded."""
    was_excluded = _is_excluded(_TRACER)
    set_excluded(_TRACER, False)
    torch._C._set_tracing_state(trace)  # type: ignore[attr-defined]  # PyTorch leaves it untyped
    set_excluded(_TRACER, was_excluded)


def traced_inside(func: torch._ops.OpOverload) -> AbstractContextManager[object]:
    """Have ``torch.jit.trace`` record the calls inside an operator that it does not record itself.

    It records a call above the modes, but for some operators: of those it records the calls that
    their kernels make. A mode receives a call with the tracer's key excluded, so that nothing would
    be recorded, and the result be a constant of the graph.
    """
    return Undo(_trace_inside) if is_tracing() and is_traced_inside(func) else _NOTHING


def _trace_inside(undo: Undo) -> None:
    undo.note(functools.partial(set_excluded, _TRACER, _is_excluded(_TRACER)))
    set_excluded(_TRACER, False)
    if _thread.paused_trace is not None:
        undo.note(functools.partial(_set_trace, None))
        _set_trace(_thread.paused_trace)


def is_tracing() -> bool:
    """Return whether ``torch.jit.trace`` records a graph, and not the operator that is called."""
    return _get_trace() is not None or _thread.paused_trace is not None


def is_traced_inside(func: torch._ops.OpOverload) -> bool:
    """Return whether ``torch.jit.trace`` records what an operator calls, and not the operator."""
    schema = func._schema
    return schema.name in _TRACED_INSIDE or (not schema.returns and schema.is_mutable)


def with_tensors(func: torch._ops.OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return positional arguments with tensors in the place of numbers that stand for them.

    PyTorch gives a mode a number for a tensor that is one (the ``1`` of ``x + 1`` in a graph of
    ``torch.jit.trace``), and takes it back for few operators. Of those nothing is replaced.
    """
    replaced = list(args)
    for position, arg in enumerate(args):
        if (
            (dtype := _NUMBERS.get(type(arg))) is not None
            and str(func._schema.arguments[position].type) in _TENSOR_TYPES
            and not _takes_numbers(func._opname)
        ):
            replaced[position] = torch.scalar_tensor(arg, dtype=dtype, device="cpu")
    return args if all(map(operator.is_, args, replaced)) else tuple(replaced)


@functools.cache
def caller_of(func: torch._ops.OpOverload) -> Callable[..., Any]:
    """Return what makes a call that a mode has received, sooner than ``func``, which is Python."""
    run: Callable[..., Any] = func._op
    if _passes_zero_tensors_on(func):

        def call_with_zero_tensors(*args: Any, **kwargs: Any) -> Any:
            set_excluded(_ZERO_TENSOR, False)
            return run(*args, **kwargs)

        return call_with_zero_tensors
    return traced_caller(func, run)


def traced_caller(func: torch._ops.OpOverload, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls ``run``, which calls ``func``, with ``torch.jit.trace`` looking inside."""
    if not is_traced_inside(func):
        return run

    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_tracing():
            return run(*args, **kwargs)
        with traced_inside(func):
            return run(*args, **kwargs)

    return call


def _passes_zero_tensors_on(func: torch._ops.OpOverload) -> bool:
    """Return whether an operator takes zero tensors, which have no memory, to the one it calls.

    Forward-mode AD makes them (the tangents of what is constant). A key above the modes computes
    with them, and a mode receives a call with that key excluded: ``aten::mul.Scalar`` would call
    ``aten::mul.Tensor``, which would read where nothing is.
    """
    name = func.name()
    return (
        func._overloadname == "Scalar"
        and _has_kernel(name, "ZeroTensor")
        and _has_kernel(name, "CompositeExplicitAutograd")
    )


def autocast_inside(func: torch._ops.OpOverload) -> Undo:
    """Apply autocast inside an operator, as it applies without a mode.

    In inference mode a mode receives composite operators whole, with autocast's keys excluded, so
    the calls inside ``torch.einsum`` would not be cast; and so it always receives the operators of
    other libraries. An operator that autocast itself lists was cast before the mode received it,
    and its inner calls are not cast again.
    """
    return Undo(functools.partial(_cast_inside, func))


def _cast_inside(func: torch._ops.OpOverload, undo: Undo) -> None:
    if _thread.is_cast or not (torch.is_inference_mode_enabled() or is_foreign(func)):
        return
    # The state in which the program made the call.
    with torch._C._RestorePythonTLSSnapshot():  # type: ignore[attr-defined]  # it has no types
        keys = [key for name, key in _AUTOCAST.items() if torch.is_autocast_enabled(name)]
    if any(_has_kernel(func.name(), key) for key in keys):
        undo.note(functools.partial(setattr, _thread, "is_cast", False))
        _thread.is_cast = True
        return
    for key in keys:
        undo.note(functools.partial(set_excluded, key, True))
        set_excluded(key, False)
