"""PyTorch's own settings: read, set for a block or a call, and restored whatever happens inside."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import torch
import wrapt
from torch.utils import _python_dispatch

from detmode.process.setting import FILL, FLAG, Setting, is_flag_on, native_calls
from detmode.process.undo import Undo

_get_flag = torch._C._get_deterministic_algorithms
_get_warn_only = torch._C._get_deterministic_algorithms_warn_only
_get_benchmark = torch._C._get_cudnn_benchmark
_INDUCTOR = "torch._inductor.config"

NOT_CALLED: Any = object()
"""In place of the result of a call that was not made."""


def deterministic_flag(mode: bool) -> Undo:
    """Hold PyTorch's deterministic flag at ``mode``, without ``warn_only``, while a call runs."""
    return FLAG.holding((mode, False))


def call_native(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``function`` under the settings of deterministic paths, and return its result.

    Without them, the backward of attention varies under ``warn_only``, and timing chooses the
    algorithm under cuDNN's benchmark, which a program may turn on inside a block.
    """
    result = call_if_settled(function, args, kwargs)
    if result is not NOT_CALLED:
        return result
    run = functools.partial(native_calls.run, function, *args, **kwargs)
    if _get_benchmark():
        run = functools.partial(CUDNN_BENCHMARK.holding(False).around, run)
    return deterministic_flag(True).around(run)


def call_if_settled(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    reads_warn_only: bool = True,
) -> Any:
    """Call ``function`` if the settings of deterministic paths are in force, as they mostly are.

    ``reads_warn_only`` is false if PyTorch's ``warn_only`` does not matter to the function.

    Returns:
        The result, or ``NOT_CALLED`` if the call was not made.
    """
    if not _get_flag() or (reads_warn_only and _get_warn_only()) or _get_benchmark():
        return NOT_CALLED
    # What is held is asked for in the call: another thread's that needs the flag off finds this one
    # in progress, and waits. As in native_calls.run, whose two calls in Python would cost 3 %.
    progress = native_calls.own.progress
    depth = progress.depth
    try:
        try:
            progress.depth = depth + 1
            return NOT_CALLED if FLAG._active or FLAG._waiting else function(*args, **kwargs)
        finally:
            progress.depth = depth
    finally:
        progress.depth = depth


def _inductor_config() -> Any:
    # Importing it loads the compiler, which takes seconds.
    return sys.modules.get(_INDUCTOR)


def _inductor_is_deterministic() -> bool | None:
    # Versions before 2.10 lack the field.
    return getattr(_inductor_config(), "deterministic", None)


def _set_inductor(deterministic: bool | None) -> None:
    if _inductor_is_deterministic() is not None and deterministic is not None:
        _inductor_config().deterministic = deterministic


def _inductor_is_local() -> bool:
    # Newer versions keep the configuration in context variables, one per thread.
    entry = getattr(_inductor_config(), "_config", {}).get("deterministic")
    return isinstance(getattr(entry, "user_override", None), ContextVar)


# The C setters also work where torch.backends is frozen.
CUDNN_DETERMINISTIC = Setting(
    "cuDNN's choice of deterministic algorithms",
    torch._C._get_cudnn_deterministic,
    torch._C._set_cudnn_deterministic,
)
CUDNN_BENCHMARK = Setting(
    "cuDNN's benchmark", _get_benchmark, torch._C._set_cudnn_benchmark, needed=False
)
INDUCTOR_DETERMINISTIC: Setting[bool | None] = Setting(
    "Inductor's deterministic option",
    _inductor_is_deterministic,
    _set_inductor,
    is_local=_inductor_is_local,
)


def _inductor_is_loaded(config: ModuleType) -> None:
    if INDUCTOR_DETERMINISTIC.save_late():
        _set_inductor(is_flag_on())


wrapt.register_post_import_hook(_inductor_is_loaded, _INDUCTOR)


# PyTorch's record of entered modes, by which it compiles nothing inside them. It restores the
# record mode by mode, as if only one thread entered modes.
_IN_MODES = [
    name
    for name in (
        "_is_in_torch_dispatch_mode",
        "_is_in_non_infra_torch_dispatch_mode",
        "_is_in_any_mode_without_ignore_compile_internals",
    )
    if hasattr(_python_dispatch, name)
]

# The copy that compiled guards read; PyTorch 2.8 and 2.9 have none.
_SET_FOR_GUARDS: Callable[[bool], None] | None = getattr(
    torch._C._dynamo.guards, "set_is_in_mode_without_ignore_compile_internals", None
)


def _set_in_modes(values: list[bool]) -> None:
    for name, value in zip(_IN_MODES, values):
        setattr(_python_dispatch, name, value)
    if _SET_FOR_GUARDS is not None:
        _SET_FOR_GUARDS(values[-1])


IN_MODES = Setting(
    "what PyTorch remembers of entered modes",
    lambda: [getattr(_python_dispatch, name) for name in _IN_MODES],
    _set_in_modes,
)


def choose_for_block(warn_only: bool, fill_uninitialized_memory: bool | None, undo: Undo) -> None:
    """Choose the settings of an entered mode, until ``undo`` runs."""
    IN_MODES.save(undo)
    # As torch.use_deterministic_algorithms does, which loads the compiler for it.
    INDUCTOR_DETERMINISTIC.choose(True, undo)
    FLAG.choose((True, warn_only), undo)
    CUDNN_DETERMINISTIC.choose(True, undo)
    CUDNN_BENCHMARK.choose(False, undo)
    if fill_uninitialized_memory is not None:
        FILL.choose(fill_uninitialized_memory, undo)
