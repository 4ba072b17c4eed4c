"""All orders of a launch's programs that can differ, by dynamic partial-order reduction.

Two steps of different programs *depend* on each other if they use the same memory and their order
can matter. Orders that differ only in steps that do not depend on each other give the same memory,
so one of each such class is run: from a run, the reversal of each pair of dependent steps that
nothing between them orders is scheduled next (Abdulla, Aronis, Jonsson and Sagonas, *Optimal
Dynamic Partial Order Reduction*, POPL 2014: source sets, without sleep sets).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detmode.verify.certificates.triton.memory import COMMUTING, Touch
from detmode.verify.certificates.triton.schedules import Step

READS = {"load", "atomic load"}


class TooManyError(Exception):
    """The launch has more orders than may be run, or ones that whole operations do not cover."""


def depend(one: Touch, other: Touch) -> bool:
    """Tell whether the order of two operations of different programs can matter.

    Raises:
        TooManyError: they share several addresses and one reads what it updates, so that the order
            of lanes matters.
    """
    if one.kind in READS and other.kind in READS:
        return False
    if one.operation == other.operation and one.commutes and other.commutes:
        return False
    shared = np.intersect1d(one.addresses, other.addresses, assume_unique=True)
    if shared.size == 0:
        return False
    if shared.size > max(one.width, other.width) and any(
        getattr(t.result, "was_read", False) for t in (one, other)
    ):
        raise TooManyError
    return True


@dataclass
class Relation:
    """The dependence of steps, remembered by their operations."""

    known: dict[tuple[object, object], bool] = field(default_factory=dict)

    def of(self, one: Step, other: Step) -> bool:
        """Tell whether two steps depend on each other; a program's own always do."""
        if one.program == other.program:
            return True
        key = (_key(one), _key(other))
        if key not in self.known:
            self.known[key] = any(depend(a, b) for a in one.touches for b in other.touches)
        return self.known[key]


def _key(step: Step) -> object:
    return tuple((t.kind, t.operation, t.commutes, t.addresses.tobytes()) for t in step.touches)


def conflicting(steps: Sequence[Step]) -> set[int]:
    """The programs that use memory of which another program's use can matter to them."""
    touches = [(step.program, touch) for step in steps for touch in step.touches]
    if not touches:
        return set()
    sizes = [touch.addresses.size for _, touch in touches]
    programs = np.repeat([program for program, _ in touches], sizes)
    classes = np.repeat([_class(touch) for _, touch in touches], sizes)
    _, places = np.unique(np.concatenate([t.addresses for _, t in touches]), return_inverse=True)
    (first, last), (low, high) = _range(programs, places), _range(classes, places)
    shared, ordered = first < last, (low < high) | (low == ORDERED)
    return set(programs[(shared & ordered)[places]].tolist())


ORDERED = 1
"""The class of a use whose order with its like can matter; 0 reads, the others commute."""


def _range(values: NDArray[np.int64], places: NDArray[np.intp]) -> NDArray[np.int64]:
    """The smallest and the largest value at each place."""
    found = np.array([[values.max()], [values.min()]]).repeat(places.max() + 1, axis=1)
    np.minimum.at(found[0], places, values)
    np.maximum.at(found[1], places, values)
    return found


def _class(touch: Touch) -> int:
    if touch.kind in READS:
        return 0
    return 2 + sorted(COMMUTING).index(touch.operation) if touch.commutes else ORDERED


@dataclass
class _Node:
    """A state of the current run: the program that went on, and those that still have to."""

    program: int
    ready: frozenset[int]
    tried: set[int]
    wanted: set[int] = field(default_factory=set)


def all_orders(run: Callable[[list[int]], list[Step]], most: int) -> int:
    """Run a representative of every class of orders.

    Args:
        run: runs the launch with these choices first; returns all steps, in their order.
        most: the largest number of runs.

    Returns:
        The number of runs.

    Raises:
        TooManyError: more than ``most`` runs would be needed.
    """
    relation = Relation()
    nodes: list[_Node] = []
    choices: list[int] = []
    for count in range(1, most + 1):
        steps = run(choices)
        nodes += [_Node(s.program, s.ready, {s.program}) for s in steps[len(nodes) :]]
        _want_reversals(relation, steps, nodes)
        while nodes and not nodes[-1].wanted - nodes[-1].tried:
            nodes.pop()
        if not nodes:
            return count
        last = nodes[-1]
        last.program = min(last.wanted - last.tried)
        last.tried.add(last.program)
        choices = [node.program for node in nodes]
    raise TooManyError


def _want_reversals(relation: Relation, steps: list[Step], nodes: list[_Node]) -> None:
    """Add to each state the programs that would reverse a pair of dependent steps."""
    before: list[int] = []  # for each step, a bit set of the steps that come before it in any order
    for later, step in enumerate(steps):
        direct = [i for i in range(later) if relation.of(steps[i], step)]
        bits = 0
        for i in direct:
            bits |= before[i] | 1 << i
        before.append(bits)
        for i in direct:
            if steps[i].program == step.program or any(
                before[k] >> i & 1 for k in direct if k != i
            ):
                continue
            free = [k for k in range(i + 1, later) if not before[k] >> i & 1] + [later]
            inside = sum(1 << k for k in free)
            first = {steps[k].program for k in free if not before[k] & inside}
            first &= nodes[i].ready
            if not first & (nodes[i].wanted | nodes[i].tried):
                nodes[i].wanted |= {min(first)} if first else nodes[i].ready - {steps[i].program}
