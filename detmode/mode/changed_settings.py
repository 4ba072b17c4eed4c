"""Changes that a program makes to settings, in a block that leaves native calls to them.

``intercept="listed"`` leaves them to the flag and to cuDNN's benchmark, which the block chooses
when it is entered. (cuDNN's ``deterministic`` matters only while the flag is off.) Calls cost
nothing for it: while such a block is open, the functions that change the settings tell of each
change.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from detmode.process.patched import Patched
from detmode.process.setting import FLAG
from detmode.process.torch_settings import CUDNN_BENCHMARK
from detmode.sites.lines import nearest, site_of
from detmode.table.call_site import Site

Tell = Callable[[str, Site], None]
"""Called with a setting's new value, in words, and the place that has set it."""

_UNKNOWN = Site("<unknown>")
_users: dict[object, Tell] = {}


def watch(user: object, tell: Tell) -> None:
    """Tell a user of each change after which native calls may vary."""
    _users[user] = tell
    for setter in _SETTERS:
        setter.enter(user)


def unwatch(user: object) -> None:
    """Tell a user of no more changes; it may have left before."""
    _users.pop(user, None)
    for setter in _SETTERS:
        setter.leave(user)


def unsettled() -> Iterator[str]:
    """Return, in words, the values that the program has chosen and that let native calls vary."""
    is_on, warns_only = FLAG.chosen()
    if not is_on:
        yield "PyTorch's flag is off"
    elif warns_only:
        yield "PyTorch's flag is on with warn_only"
    if CUDNN_BENCHMARK.chosen():
        yield "torch.backends.cudnn.benchmark is on"


def _telling(setter: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(setter)
    def set_and_tell(*args: Any, **kwargs: Any) -> Any:
        result = setter(*args, **kwargs)
        _tell_all()
        return result

    return set_and_tell


def _tell_all() -> None:
    frame = nearest(sys._getframe(1))
    site = _UNKNOWN if frame is None else site_of(frame)
    for value in unsettled():
        for tell in list(_users.values()):
            tell(value, site)


def _cudnn_benchmark() -> Any:
    # An assignment to torch.backends.cudnn.benchmark calls the function that its class has noted.
    return vars(type(torch.backends.cudnn)).get("benchmark")


_SETTERS = (
    Patched(lambda: torch._C, "_set_deterministic_algorithms", _telling),
    Patched(lambda: torch._C, "_set_cudnn_benchmark", _telling),
    Patched(_cudnn_benchmark, "setter", _telling),
)
