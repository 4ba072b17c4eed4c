"""Frames and modules that the player in C++ knows: by address, for as long as they live."""

from __future__ import annotations

import weakref
from types import FrameType
from typing import Any

from detmode.cuda import native
from detmode.sites import lines


class _Learned:
    """The objects whose addresses the player knows."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def know(self, player: native.Player, learned: Any, role: int) -> None:
        """Teach the player an object's address until the object is gone."""
        address = id(learned)
        if address in self._references:
            return

        def forget(_: object) -> None:
            player.dm_forget(address)
            self._references.pop(address, None)

        self._references[address] = weakref.ref(learned, forget)
        player.dm_know(address, role)


_learned = _Learned()


def learn_frames(player: native.Player, frame: FrameType | None, paths: dict[int, str]) -> None:
    """Teach what the frames are, from one outwards, and the modules that have a path."""
    while frame is not None:
        role = lines.role_of(frame)
        _learned.know(player, frame.f_code, role)
        if role == lines.MODULE:
            module = lines.module_called_by(frame)
            if id(module) in paths:
                _learned.know(player, module, lines.MODULE)
        frame = frame.f_back
