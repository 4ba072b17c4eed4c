"""The player in C++: operators by number, what is left to it of them, and frames by address."""

from __future__ import annotations

import functools
import weakref
from types import FrameType
from typing import Any, NamedTuple

import torch

from detmode.cuda import native
from detmode.mode.listed_operators import Place
from detmode.mode.overload_info import OverloadInfo
from detmode.process.dispatch import caller_of
from detmode.process.memo import ById
from detmode.sites import lines
from detmode.table.rule import Native
from detmode.table.rule_table import RuleTable

_KEYS = tuple(
    layout + device for device in ("CPU", "CUDA") for layout in ("", "Sparse", "SparseCsr")
)
_ABOVE = ("AutogradCPU", "AutogradCUDA")
"""The keys at which the player makes calls, and those at which it notes them."""
_ops: dict[str, int] = {}
"""The numbers of operators at keys, by the labels of their places; -1 if the player takes none."""
funcs: dict[int, torch._ops.OpOverload] = {}
"""The overloads of operators by their numbers."""


def op_at(player: native.Player, place: Place) -> int:
    """Return the number of an operator at a key; -1 if the player stands not there."""
    if place.key not in (_KEYS if place.decides else _ABOVE):
        return -1
    if place.label not in _ops:
        schema = place.func._schema
        names = schema.name.encode(), schema.overload_name.encode(), place.key.encode()
        number = _ops[place.label] = player.dm_op(*names)
        if number >= 0:
            funcs[number] = place.func
    return _ops[place.label]


@functools.lru_cache(8)
def ops_at(
    player: native.Player, table: RuleTable, places: tuple[Place, ...]
) -> list[tuple[int, bool]]:
    """Return the numbers of operators at places, and whether the player makes their calls."""
    numbers = ((op_at(player, place), place.func) for place in places)
    return [(number, playable(table, func).is_made) for number, func in numbers if number >= 0]


_for_modes: dict[torch._ops.OpOverload, int] = {}


def op_for_modes(player: native.Player, func: torch._ops.OpOverload) -> int:
    """Return the number of an operator where dispatch modes receive calls; -1 without one."""
    number = _for_modes.get(func)
    if number is None:
        schema = func._schema
        number = player.dm_mode_op(schema.name.encode(), schema.overload_name.encode())
        _for_modes[func] = number
        if number >= 0:
            funcs[number] = func
    return number


class _Playable(NamedTuple):
    """The share of the player in an overload's calls, under the rules of a table."""

    is_in_key: bool
    """All that the choice of a call's row depends on is in its key."""
    is_made: bool
    """It makes those that a substitute or a native path is for."""


_playable: ById[dict[torch._ops.OpOverload, _Playable]] = ById()
"""By table and overload: each block asks again, and to look its rows up takes long."""


def playable(table: RuleTable, func: torch._ops.OpOverload) -> _Playable:
    """Return what the player can do with an overload's calls."""
    known = _playable.get(id(table))
    if known is None:
        known = _playable.keep(table, {})
    if func not in known:
        rules = [row.rule for row in table.get(func)]
        is_in_key = not any(rule.when.environment or rule.when.reads_values for rule in rules)
        is_made = any(isinstance(rule.action, Native) or rule.launches for rule in rules)
        known[func] = _Playable(is_in_key, is_in_key and is_made)
    return known[func]


def share_of(table: RuleTable, func: torch._ops.OpOverload, overload: OverloadInfo | None) -> int:
    """Return what is left to the player of the calls of an overload that a mode receives."""
    if overload is None:
        return 1
    # Overloads that take objects of classes in C++ are called in Python.
    is_atens = overload.run is (caller_of(func) if type(func) is torch._ops.OpOverload else func)
    if overload.override is not None or overload.composite or not is_atens:
        return 0
    if overload.passes:
        return 1
    return (2 if overload.dense_passes else 3) if playable(table, func).is_in_key else 0


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
    address = id(learned)
    if address not in _known:
        weakref.finalize(learned, _forget, player, address).atexit = False
        _known.add(address)
        player.dm_know(address, role)


def _forget(player: native.Player, address: int) -> None:
    player.dm_forget(address)
    _known.discard(address)
