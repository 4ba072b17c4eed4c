"""The dependence of the steps of a launch's programs on each other, by what they use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detmode.verify.certificates.orders import ORDERED, READ, TooManyError, conflicting, matters

ATOMICS = {"atomic", "atomic load"}
COMMUTING = {"ADD", "AND", "OR", "XOR", "MAX", "MIN", "UMAX", "UMIN"}


@dataclass
class Touch:
    """The bytes that one operation used; ``result`` is the handle of what an atomic returned."""

    kind: str
    operation: str
    addresses: NDArray[np.int64]
    width: int
    lanes: int
    result: Any = None

    @property
    def commutes(self) -> bool:
        """Is integer arithmetic whose result nothing reads, so that its order cannot matter."""
        return self.operation in COMMUTING and not getattr(self.result, "was_read", True)

    @property
    def is_atomic(self) -> bool:
        """True for an atomic operation, also one among the threads of a program alone."""
        return self.kind in ATOMICS or self.operation not in ("LOAD", "STORE")

    @property
    def lanes_meet(self) -> bool:
        """True if several lanes of an atomic have one address, and their order can matter."""
        meet = self.lanes * self.width > self.addresses.size
        return meet and self.kind == "atomic" and not self.commutes


@dataclass
class Step:
    """A program's accesses from one atomic to the next, and which programs could have run."""

    program: int
    ready: frozenset[int]
    touches: list[Touch] = field(default_factory=list)


def _kind(touch: Touch) -> int:
    if touch.kind in ("load", "atomic load"):
        return READ
    return ORDERED + 1 + sorted(COMMUTING).index(touch.operation) if touch.commutes else ORDERED


def _depend(first: Touch, second: Touch) -> bool:
    """Return whether the order of two operations of different programs can matter.

    If they share several addresses and one reads what it updates, that of lanes does: they raise.
    """
    if not matters(_kind(first), _kind(second)):
        return False
    shared = np.intersect1d(first.addresses, second.addresses, assume_unique=True)
    if shared.size > max(first.width, second.width) and any(
        getattr(t.result, "was_read", False) for t in (first, second)
    ):
        raise TooManyError
    return bool(shared.size)


def relation() -> Callable[[Step, Step], bool]:
    """Return what tells whether two steps depend on each other; it remembers their operations."""
    known: dict[tuple[object, object], bool] = {}

    def depends(first: Step, second: Step) -> bool:
        if first.program == second.program:
            return True
        key = (_key(first), _key(second))
        if key not in known:
            known[key] = any(_depend(a, b) for a in first.touches for b in second.touches)
        return known[key]

    return depends


def _key(step: Step) -> object:
    return tuple((t.kind, t.operation, t.commutes, t.addresses.tobytes()) for t in step.touches)


def meeting(steps: Sequence[Step]) -> set[int]:
    """Return the programs that use memory of which another one's use can matter to them."""
    uses = [(step.program, touch) for step in steps for touch in step.touches]
    sizes = [touch.addresses.size for _, touch in uses]
    programs = np.repeat([program for program, _ in uses], sizes)
    kinds = np.repeat([_kind(touch) for _, touch in uses], sizes)
    places = np.concatenate([np.zeros(0, np.int64), *(touch.addresses for _, touch in uses)])
    return set(programs[conflicting(programs, kinds, places)].tolist())
