"""Frames and modules that the player in C++ knows: by address, for as long as they live."""

from __future__ import annotations

import weakref
from types import FrameType
from typing import Any

from detmode.cuda import native
from detmode.sites import lines

_known: set[int] = set()
"""The addresses that the player knows."""


def learn_frames(player: native.Player, frame: FrameType | None, paths: dict[int, str]) -> None:
    """Teach what the frames are, from one outwards, and the modules that have a path."""
    while frame is not None:
        role = lines.role_of(frame)
        _learn(player, frame.f_code, role)
        if role == lines.MODULE:
            module = lines.module_called_by(frame)
            if id(module) in paths:
                _learn(player, module, lines.MODULE)
        frame = frame.f_back


def _learn(player: native.Player, learned: Any, role: int) -> None:
    """Teach the player an object's address until the object is gone."""
    address = id(learned)
    if address not in _known:
        weakref.finalize(learned, _forget, player, address).atexit = False
        _known.add(address)
        player.dm_know(address, role)


def _forget(player: native.Player, address: int) -> None:
    player.dm_forget(address)
    _known.discard(address)
