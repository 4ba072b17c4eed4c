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

from detmode.cuda.undo import Lock
from detmode.environment.process_setting import FLAG
from detmode.environment.settings import CUDNN_BENCHMARK
from detmode.sites.lines import nearest, site_of
from detmode.table.call_site import Site

Tell = Callable[[str, Site], None]
"""Called with a setting's new value, in words, and the place that has set it."""

_SETTERS = ("_set_deterministic_algorithms", "_set_cudnn_benchmark")
_UNKNOWN = Site("<unknown>")

_lock = Lock()
_users: dict[object, Tell] = {}
# The object and the attribute, what was there, and what stands for it.
_installed: list[tuple[Any, str, Any, Any]] = []


def watch(user: object, tell: Tell) -> None:
    """Tell a user of each change after which native calls may vary."""
    _lock.run(_open, user, tell)


def unwatch(user: object) -> None:
    """Tell a user of no more changes; it may have left before."""
    _lock.run(_close, user)


def unsettled() -> Iterator[str]:
    """Return, in words, the values that the program has chosen and that let native calls vary."""
    is_on, warns_only = FLAG.chosen()
    if not is_on:
        yield "PyTorch's flag is off"
    elif warns_only:
        yield "PyTorch's flag is on with warn_only"
    if CUDNN_BENCHMARK.chosen():
        yield "torch.backends.cudnn.benchmark is on"


def _open(user: object, tell: Tell) -> None:
    _users[user] = tell
    if _installed:
        return
    for name in _SETTERS:
        _install(torch._C, name)
    # An assignment to torch.backends.cudnn.benchmark calls the function that its class has noted.
    setting = vars(type(torch.backends.cudnn)).get("benchmark")
    if hasattr(setting, "setter"):
        _install(setting, "setter")


def _install(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _tell_all()
        return result

    _installed.append((owner, name, original, stand_in))
    setattr(owner, name, stand_in)


def _tell_all() -> None:
    frame = nearest(sys._getframe(1))
    site = _UNKNOWN if frame is None else site_of(frame)
    for value in unsettled():
        for tell in list(_users.values()):
            tell(value, site)


def _close(user: object) -> None:
    _users.pop(user, None)
    if _users:
        return
    for owner, name, original, stand_in in _installed:
        if getattr(owner, name) is stand_in:
            setattr(owner, name, original)
    _installed.clear()
