"""Triton's interpreter, made to run what a launch decides.

All private names of Triton that this package uses are here, and `PRIVATE` lists them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import autotuner, interpreter, jit

from detmode.verify.certificates.triton.launch import InterpretedLaunch

PRIVATE = [
    "knobs.runtime.interpret",
    "runtime.jit.JITFunction.run",
    "runtime.jit.JITFunction.__call__",
    "runtime.autotuner.Autotuner.run",
    "runtime.interpreter.FunctionRewriter.rewrite_ast",
    "runtime.interpreter.InterpretedFunction.run",
    "runtime.interpreter.InterpretedFunction.__call__",
    "runtime.interpreter.TensorHandle",
    "runtime.interpreter._implicit_cvt",
    "runtime.interpreter._patch_lang",
    "runtime.interpreter.interpreter_builder.create_masked_load",
    "runtime.interpreter.interpreter_builder.create_masked_store",
    "runtime.interpreter.interpreter_builder.create_atomic_cas",
    "runtime.interpreter.interpreter_builder.create_atomic_rmw",
    "runtime.interpreter.interpreter_builder.set_grid_dim",
    "runtime.interpreter.interpreter_builder.set_grid_idx",
]
"""The names below ``triton`` that must be there."""

LANGUAGE = ("", "core", "core.dtype", "core.tensor", "core.condition", "math")
"""The namespaces of `triton.language` that the interpreter changes."""

Start = Callable[[Any, Mapping[str, Any], tuple[int, int, int]], InterpretedLaunch]
Tune = Callable[[Any, list[Any]], Any]


def check() -> None:
    """Check that the installed Triton has what `PRIVATE` lists.

    Raises:
        RuntimeError: it does not; the message names what is missing.
    """
    missing = []
    for name in PRIVATE:
        try:
            operator.attrgetter(name)(triton)
        except AttributeError:
            missing.append(f"triton.{name}")
    if missing:
        raise RuntimeError(
            f"Triton {triton.__version__} has no {', '.join(missing)}, which kernels are "
            "interpreted with; use another version of Triton, such as 3.9"
        )


@contextmanager
def interpreted(start: Start, tune: Tune) -> Iterator[None]:
    """Run launches of Triton's kernels in the interpreter, in this block.

    Args:
        start: is called for each launch with the kernel's Python function, its arguments by name,
            and the grid; the launch that it returns is run.
        tune: is called for each launch of an autotuned kernel with the tuner and its configs;
            returns the config.
    """
    check()

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        if not warmup:
            _run(self, args, kwargs, grid, start)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _rewritten(self.fn)(*args, **kwargs)

    def tuned(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args))
        try:
            configs = self.configs
            if self.early_config_prune:
                configs = self.early_config_prune(configs, self.nargs, **kwargs)
            config = tune(self, configs)
            if config.pre_hook is not None:
                config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
            return self.fn.run(*args, **kwargs, **config.all_kwargs())
        finally:
            self.nargs = None

    with ExitStack() as stack:
        for kind in (jit.JITFunction, interpreter.InterpretedFunction):
            stack.enter_context(mock.patch.object(kind, "run", run))
            stack.enter_context(mock.patch.object(kind, "__call__", call))
        stack.enter_context(mock.patch.object(autotuner.Autotuner, "run", tuned))
        stack.enter_context(mock.patch.object(triton.knobs.runtime, "interpret", True))
        builder = interpreter.interpreter_builder
        options = dataclasses.replace(builder.options, debug=True, sanitize_overflow=False)
        # `tl.device_assert` does something under `debug` alone.
        stack.enter_context(mock.patch.object(builder, "options", options))
        for name in LANGUAGE:
            stack.enter_context(_kept(operator.attrgetter(name)(tl) if name else tl))
        if hasattr(tl.core, "tensor_descriptor_base"):
            stack.enter_context(_kept(tl.core.tensor_descriptor_base))
        language = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
        interpreter._patch_lang(language)
        _mend_index()
        stack.callback(_rewritten.cache_clear)
        yield


def _mend_index() -> None:
    """Let a tensor of one element be an index, such as a loop's bound, where it is none.

    Triton 3.6 passes its array, whose shape is (1,), to ``int``. NumPy 2.4 refuses that; older
    ones deprecate it, which is an error where warnings are.
    """
    try:
        operator.index(interpreter._implicit_cvt(1))
    except (TypeError, DeprecationWarning):
        tl.core.tensor.__index__ = lambda self: int(self.handle.data.squeeze())  # as Triton 3.7


@contextmanager
def _kept(namespace: Any) -> Iterator[None]:
    """Restore all attributes of a module or class."""
    before = dict(vars(namespace))
    try:
        yield
    finally:
        for name, value in list(vars(namespace).items()):
            if name not in before:
                delattr(namespace, name)
            elif before[name] is not value:
                setattr(namespace, name, before[name])


@functools.cache
def _rewritten(function: types.FunctionType) -> Callable[..., Any]:
    """Make what the interpreter calls; the rewriting adds names to the globals of a copy."""
    names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    copy = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, function.__annotations__
    copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
    return cast(Callable[..., Any], interpreter.FunctionRewriter(copy).rewrite_ast())


def _run(
    kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any, start: Start
) -> None:
    """Make one launch, as ``kernel[grid](*args, **kwargs)`` does."""
    signature = inspect.signature(kernel.fn)
    known = {name: value for name, value in kwargs.items() if name in signature.parameters}
    bound = signature.bind(*args, **known)
    bound.apply_defaults()
    arguments = bound.arguments
    for hook in kernel.pre_run_hooks:
        hook(*args, **kwargs)
    sizes = grid(arguments) if callable(grid) else grid
    sizes = tuple(int(size) for size in ((sizes,) if isinstance(sizes, int) else sizes))
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0:
        raise ValueError(f"a grid has one to three sizes, none of them negative, but got {sizes}")
    sizes += (1,) * (3 - len(sizes))
    launch = start(kernel.fn, arguments, cast(tuple[int, int, int], sizes))
    if 0 in sizes:
        return
    constants = {param.name for param in jit.JITFunction(kernel.fn).params if param.is_constexpr}
    converted = {
        name: value if name in constants else _convert(name, value, launch)
        for name, value in arguments.items()
    }
    body = functools.partial(_rewritten(kernel.fn), **converted)
    with _Accesses(launch).hooked():
        interpreter.interpreter_builder.set_grid_dim(*sizes)
        launch.run(body, lambda place: interpreter.interpreter_builder.set_grid_idx(*place))


def _convert(name: str, value: Any, launch: InterpretedLaunch) -> Any:
    """Convert an argument for the interpreter; pointers get the addresses of the launch."""
    if isinstance(value, tuple):
        items = [_convert(f"{name}[{i}]", one, launch) for i, one in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    converted = interpreter._implicit_cvt(value)
    base = getattr(value, "base", value)  # of a tensor descriptor or of `triton.reinterpret`
    if isinstance(base, torch.Tensor):
        handle = converted.handle
        handle = getattr(handle, "base", handle)
        handle.data = np.array([launch.memory.address(name, base)], np.uint64)
    return converted


@functools.cache
def _result_type() -> Any:
    class _Result(interpreter.TensorHandle):  # type: ignore[misc]  # Triton is untyped
        """The result of an atomic; knows whether anything has read it."""

        def __post_init__(self) -> None:
            super().__post_init__()
            self.was_read = False

        def __getattribute__(self, name: str) -> Any:
            if name == "data":
                object.__setattr__(self, "was_read", True)
            return super().__getattribute__(name)

    return _Result


class _Accesses:
    """The accesses of the interpreter's builder, which go through a launch."""

    def __init__(self, launch: InterpretedLaunch) -> None:
        self._launch = launch
        builder = self._builder = interpreter.interpreter_builder
        self._load, self._store = builder.create_masked_load, builder.create_masked_store
        self._cas, self._rmw = builder.create_atomic_cas, builder.create_atomic_rmw
        self._order: list[str] = []
        """Of the atomic load, store or poll that runs."""

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Let the builder make its accesses by the launch, in this block."""
        hooks: dict[str, Any] = {
            "create_masked_load": self._masked_load,
            "create_masked_store": self._masked_store,
            "create_atomic_cas": self._atomic_cas,
            "create_atomic_rmw": self._atomic_rmw,
        }
        for name in ("create_atomic_load", "create_atomic_store", "create_atomic_poll"):
            if hasattr(self._builder, name):  # they are newer than the others
                hooks[name] = self._ordered(getattr(self._builder, name))
        with mock.patch.multiple(self._builder, **hooks):
            yield

    def _masked_load(self, ptrs: Any, mask: Any, fallback: Any, *policy: Any, **named: Any) -> Any:
        chosen = np.broadcast_to(mask.data, ptrs.data.shape)
        pointers = ptrs.data[chosen]
        if not pointers.size:
            nowhere = _handle(np.zeros_like(ptrs.data), ptrs.dtype)
            return self._load(nowhere, mask, fallback, *policy, **named)

        def perform(real: NDArray[np.uint64], lanes: NDArray[np.intp]) -> Any:
            return self._load(_handle(real, ptrs.dtype), _all(real), None, *policy, **named).data

        def finish(loaded: NDArray[Any]) -> Any:
            data = np.zeros(ptrs.data.shape, loaded.dtype)
            if fallback is not None:
                data[...] = fallback.data
            data[chosen] = loaded
            return _handle(data, ptrs.get_element_ty())

        *_, is_volatile = *policy, *named.values()
        if self._order or is_volatile:
            order = self._order[-1] if self._order else "RELAXED"
            return self._launch.atomic("LOAD", pointers, _width(ptrs), order, perform, finish)
        return finish(self._launch.load(pointers, _width(ptrs), perform))

    def _masked_store(self, ptrs: Any, value: Any, mask: Any, *policy: Any) -> None:
        chosen = np.broadcast_to(mask.data, ptrs.data.shape)
        pointers = ptrs.data[chosen]
        values = np.broadcast_to(value.data, ptrs.data.shape)[chosen]
        if not pointers.size:
            return

        def perform(real: NDArray[np.uint64], lanes: NDArray[np.intp]) -> Any:
            stored = _handle(values[lanes], value.dtype)
            self._store(_handle(real, ptrs.dtype), stored, _all(real), *policy)
            return values[lanes]

        if self._order:
            order = self._order[-1]
            self._launch.atomic("STORE", pointers, _width(ptrs), order, perform, lambda _: None)
        else:
            self._launch.store(pointers, values, perform)

    def _atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        def make(real: Any, lanes: NDArray[np.intp]) -> Any:
            return self._cas(real, _flat(cmp, ptr, lanes), _flat(val, ptr, lanes), sem, scope)

        return self._atomic("CAS", ptr, val, True, _order(sem, scope), make)

    def _atomic_rmw(self, op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        if op.name == "FADD" and ptr.get_element_ty() == tl.bfloat16:
            raise NotImplementedError(
                "Triton's interpreter keeps bfloat16 as integers and cannot add it atomically; "
                "certify the kernel with float32 or float16"
            )

        def make(real: Any, lanes: NDArray[np.intp]) -> Any:
            return self._rmw(op, real, _flat(val, ptr, lanes), _all(lanes), sem, scope)

        return self._atomic(op.name, ptr, val, mask.data, _order(sem, scope), make)

    def _atomic(
        self, operation: str, ptrs: Any, val: Any, mask: Any, order: str, make: Callable[..., Any]
    ) -> Any:
        """Make an atomic whose lanes ``make`` performs, given real pointers and a selection."""
        places = np.flatnonzero(np.broadcast_to(mask, ptrs.data.shape))

        def perform(real: NDArray[np.uint64], lanes: NDArray[np.intp]) -> Any:
            return make(_handle(real, ptrs.dtype), places[lanes]).data

        def finish(got: NDArray[Any]) -> Any:
            data = np.zeros(ptrs.data.size, val.data.dtype)
            data[places] = got
            return _result_type()(data.reshape(ptrs.data.shape), val.dtype.scalar)

        pointers = ptrs.data.ravel()[places]
        return self._launch.atomic(operation, pointers, _width(ptrs), order, perform, finish)

    def _ordered(self, create: Callable[..., Any]) -> Callable[..., Any]:
        """Make the loads and stores inside an atomic operation atomic."""
        parameters = inspect.signature(create)

        def created(*args: Any, **kwargs: Any) -> Any:
            arguments = parameters.bind(*args, **kwargs).arguments
            self._order.append(_order(arguments["sem"], arguments["scope"]))
            try:
                return create(*args, **kwargs)
            finally:
                self._order.pop()

        return created


def _handle(data: NDArray[Any], dtype: Any) -> Any:
    return interpreter.TensorHandle(data, dtype)


def _all(lanes: NDArray[Any]) -> Any:
    """Return the mask under which all lanes run."""
    return _handle(np.ones(lanes.size, bool), tl.int1)


def _flat(value: Any, ptrs: Any, lanes: NDArray[np.intp]) -> Any:
    return _handle(np.broadcast_to(value.data, ptrs.data.shape).ravel()[lanes], value.dtype)


def _width(ptrs: Any) -> int:
    return max(1, int(ptrs.get_element_ty().primitive_bitwidth) // 8)


def _order(sem: Any, scope: Any) -> str:
    return "PROGRAM" if scope.name == "CTA" else str(sem.name)
