"""The choices that a program makes while it runs: seeds, settings, and what autotuners pick.

They are noted as they are made, and compared with those of a lock. Triton's are taken from the
lock: nothing is timed.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from detmode.environment import known
from detmode.environment.known import Choice
from detmode.environment.lock import autotuners
from detmode.environment.lock.drift import Drift, DriftError, drift, drifts
from detmode.environment.lock.lock_file import Sections
from detmode.process import generators
from detmode.process.dispatch import untraced, without_modes
from detmode.process.patched import Patched

_AT_END = ("compiler_options", "generators", "settings_at_end")
"""The sections that are compared when the program has ended."""


class Choices:
    """The choices of the program that runs in the block.

    Args:
        locked: the lock whose choices the program is to make; ``None`` if any will do.
        warn: takes a choice that is not the lock's; if not given, it is refused where it is made.

    Raises:
        DriftError: in the program, where it makes another choice.
    """

    def __init__(
        self, locked: Sections | None = None, warn: Callable[[Drift], None] | None = None
    ) -> None:
        self._locked = locked
        self._warn = warn
        self._process = os.getpid()
        self._at_start: dict[str, Choice] = {}
        self._tuned: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._undo = ExitStack()
        self.sections: dict[str, dict[str, Choice]] = {
            name: {} for name in (*_AT_END, "inductor", "triton")
        }
        """The choices made so far, as sections of a lock."""
        self.found: list[Drift] = []
        """The choices that are not the lock's."""

    def __enter__(self) -> Choices:
        self._at_start = known.settings()
        autotuners.hook_in()
        for function in (*_SEEDING, autotuners.RUN):
            self._undo.callback(function.leave, self)
            function.enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._undo.close()
        self.sections["compiler_options"].update(known.compiler_options())
        self.sections["settings_at_end"].update(
            (name, value)
            for name, value in known.settings().items()
            if self._at_start.get(name) != value
        )

    def name_of(self, tuner: Any) -> str:
        """Return the name of a kernel that Triton tunes, with a number if another has it too."""
        name = self._tuned.get(tuner)
        if name is None:
            name = f"{tuner.base_fn.__module__}.{tuner.base_fn.__qualname__}"
            same = sum(tuned.partition("#")[0] == name for tuned in self._tuned.values())
            name = self._tuned[tuner] = f"{name}#{same + 1}" if same else name
        return name

    def locked(self, section: str, name: str) -> Choice | None:
        """Return the lock's choice, if it has one."""
        return None if self._locked is None else self._locked.get(section, {}).get(name)

    def note(self, section: str, name: str, value: Choice | None) -> None:
        """Note a choice of the program; ``None`` stands for one that timing is about to make.

        Of choices of one name the first counts.

        Raises:
            DriftError: it is not the lock's.
        """
        if os.getpid() != self._process:
            return  # a worker, which its parent seeds
        # Another thread may note the same one.
        noted = self.sections[section]
        if name in noted or (value is not None and noted.setdefault(name, value) is not value):
            return
        if self._locked is None or section not in self._locked:
            return
        wanted = self.locked(section, name)
        if value is not None and value == wanted:
            return
        differing = drift(section, name, wanted, "by timing" if value is None else value)
        if any(drift.name == differing.name for drift in self.found):
            return
        self.found.append(differing)
        if self._warn is None:
            raise DriftError(str(differing))
        self._warn(differing)

    def late(self) -> tuple[Drift, ...]:
        """Return the lock's choices that a program which has ended well did not make."""
        if self._locked is None:
            return ()
        here = {name: self.sections[name] for name in _AT_END}
        known_before = {drift.name for drift in self.found}
        return tuple(
            drift for drift in drifts(self._locked, here) if drift.name not in known_before
        )


def _noted(generator: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that seeds as ``plain`` does, and tells those who note choices."""

    @untraced
    @functools.wraps(plain)
    def seed(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        # torch.seed returns what it has drawn from the system.
        seeds = [value for value in (*args, *kwargs.values(), result) if isinstance(value, int)]
        with without_modes():
            state = f"state {generators.digests()[generator][:16]}"
        for choices in _SEEDING[0].users:
            choices.note("generators", generator, f"{seeds[0]} ({state})" if seeds else state)
        return result

    return seed


_TORCH = partial(_noted, "torch")
_SEEDING = tuple(
    Patched(partial(import_module, module), name, make)
    for make, module, name in (
        (partial(_noted, "python"), "random", "seed"),
        (_TORCH, "torch", "manual_seed"),
        (_TORCH, "torch.random", "manual_seed"),
        (_TORCH, "torch", "seed"),
        (_TORCH, "torch.random", "seed"),
        (partial(_noted, "numpy"), "numpy.random", "seed"),
    )
)
"""The functions that seed the global generators; all have the same users."""
