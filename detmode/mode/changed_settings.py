"""Changes that a program makes to settings, in a block that leaves native calls to them.

``intercept="listed"`` leaves them to the flag and to cuDNN's benchmark, which the block chooses
when it is entered. (cuDNN's ``deterministic`` matters only while the flag is off.) Calls cost
nothing for it: while such a block is open, the functions that change the settings note each change
in its mode, and warn.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from detmode.mode import messages
from detmode.mode.alerts import warn_at
from detmode.mode.base_mode import BaseMode
from detmode.process.patched import Patched
from detmode.process.setting import FLAG
from detmode.process.torch_settings import CUDNN_BENCHMARK
from detmode.sites.lines import nearest, site_of
from detmode.table.call_site import Site

_UNKNOWN = Site("<unknown>")
_modes: dict[object, BaseMode] = {}
"""By the level of a block, its mode."""


def watch(level: object, mode: BaseMode) -> None:
    """Note each change after which native calls of a mode may vary, in the block of a level."""
    _modes[level] = mode
    for setter in _SETTERS:
        setter.enter(level)


def unwatch(level: object) -> None:
    """Note no more changes in the block of a level, which may have ended before."""
    _modes.pop(level, None)
    for setter in _SETTERS:
        setter.leave(level)


def note_at_end(mode: BaseMode) -> None:
    """Note settings that code in C++ has changed."""
    for value in _unsettled():
        mode.unsettled.setdefault(value, f"{value} when a block ended")


def _unsettled() -> Iterator[str]:
    """Return, in words, the values that the program has chosen and that let native calls vary."""
    is_on, warns_only = FLAG.chosen()
    if not is_on:
        yield "PyTorch's flag is off"
    elif warns_only:
        yield "PyTorch's flag is on with warn_only"
    if CUDNN_BENCHMARK.chosen():
        yield "torch.backends.cudnn.benchmark is on"


def _noting(setter: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(setter)
    def set_and_note(*args: Any, **kwargs: Any) -> Any:
        result = setter(*args, **kwargs)
        _note_change()
        return result

    return set_and_note


def _note_change() -> None:
    frame = nearest(sys._getframe(1))
    site = _UNKNOWN if frame is None else site_of(frame)
    for value in _unsettled():
        for mode in list(_modes.values()):
            # Once for each mode.
            if value not in mode.unsettled:
                mode.unsettled[value] = f"{value} from {site.text} on"
                warn_at(messages.setting_changed(value, mode.interface), site)


def _cudnn_benchmark() -> Any:
    # An assignment to torch.backends.cudnn.benchmark calls the function that its class has noted.
    return vars(type(torch.backends.cudnn)).get("benchmark")


_SETTERS = (
    Patched(lambda: torch._C, "_set_deterministic_algorithms", _noting),
    Patched(lambda: torch._C, "_set_cudnn_benchmark", _noting),
    Patched(_cudnn_benchmark, "setter", _noting),
)
