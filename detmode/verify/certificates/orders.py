"""The orders of a launch that can differ, by partial-order reduction.

Two uses of a place by different owners, which are blocks or programs, *depend* on each other if
their order can matter. Orders that differ only in neighbours that do not depend on each other give
the same memory, so one order of each such class is run. Of whole blocks the classes are listed
ahead (:class:`Conflicts`); of programs that are interleaved they are found run by run
(:func:`all_orders`). ``docs/design/certificates.md`` has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

LIMIT = 720
"""The most orders that are run: all those of six owners that all meet."""
MOST_AT_ONE_PLACE = LIMIT.bit_length()
"""Owners that meet in one place have at least two to the power of their number less one orders."""

READ, ORDERED = 0, 1
"""The kinds of a use; each higher one stands for an operation that commutes with itself."""


class TooManyError(Exception):
    """The launch has more orders than may be run, or ones that whole operations do not cover."""


def matters(first: int, second: int) -> bool:
    """Return whether the order of two uses of one place can matter, by their kinds."""
    return first != second or first == ORDERED


def conflicting(
    owners: NDArray[np.int64], kinds: NDArray[np.int64], places: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return the uses of places at which some order of two owners can matter.

    Args:
        owners: the number of the block or program, for each use.
        kinds: :data:`READ`, :data:`ORDERED`, or a number of an operation that commutes.
        places: a number of the memory that is used.
    """
    if not places.size:
        return np.zeros(0, np.bool_)
    _, index = np.unique(places, return_inverse=True)
    (first, last), (low, high) = _range(owners, index), _range(kinds, index)
    return np.asarray((first < last) & ((low < high) | (low == ORDERED)))[index]


def _range(values: NDArray[np.int64], places: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return the smallest and the largest value at each place."""
    limits = np.array([[values.max()], [values.min()]]).repeat(places.max() + 1, axis=1)
    np.minimum.at(limits[0], places, values)
    np.maximum.at(limits[1], places, values)
    return limits


class Conflicts:
    """The pairs of blocks that were seen to conflict, and the orders that tell them apart.

    Args:
        blocks: the number of blocks of the grid.
    """

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._with: dict[int, set[int]] = {}
        self._too_many = False

    def add(
        self, owners: NDArray[np.int64], kinds: NDArray[np.int64], places: NDArray[np.int64]
    ) -> bool:
        """Add the conflicts of a run, as of :func:`conflicting`; true if one of them is new."""
        chosen = conflicting(owners, kinds, places)
        at: dict[int, set[tuple[int, int]]] = {}
        for owner, kind, place in np.stack([owners, kinds, places], 1)[chosen].tolist():
            at.setdefault(place, set()).add((owner, kind))
        self._too_many |= any(len(dict(uses)) > MOST_AT_ONE_PLACE for uses in at.values())
        if self._too_many:
            return True
        pairs = {
            (first, second)
            for uses in at.values()
            for first, kind_of_first in uses
            for second, kind_of_second in uses
            if first != second and matters(kind_of_first, kind_of_second)
        }
        is_new = any(second not in self._with.get(first, ()) for first, second in pairs)
        for first, second in pairs:
            self._with.setdefault(first, set()).add(second)
        return is_new

    def orders(self) -> list[tuple[int, ...]] | None:
        """Return an order of all blocks for each way to order those that conflict.

        Blocks of different components of the graph of conflicts never meet, so one run orders every
        component in a way of its own. None: there are more than :data:`LIMIT` ways.
        """
        if self._too_many:
            return None
        of_components = []
        for component in self._components():
            orders = list(islice(self._normal_forms(component), LIMIT + 1))
            if len(orders) > LIMIT:
                return None
            of_components.append(orders)
        alone = tuple(sorted(set(range(self._blocks)) - self._with.keys()))
        runs = max(map(len, of_components), default=1)
        return [
            tuple(block for orders in of_components for block in orders[run % len(orders)]) + alone
            for run in range(runs)
        ]

    def _components(self) -> Iterator[list[int]]:
        left = set(self._with)
        while left:
            component = {min(left)}
            while more := set().union(*(self._with[block] for block in component)) - component:
                component |= more
            left -= component
            yield sorted(component)

    def _normal_forms(
        self, blocks: Sequence[int], begun: tuple[int, ...] = ()
    ) -> Iterator[tuple[int, ...]]:
        """Yield the first order of each class, in the order of numbers.

        An order is the first one of its class if no block could move before an earlier one with a
        higher number by exchanges of neighbours that do not conflict.
        """
        if len(begun) == len(blocks):
            yield begun
            return
        for block in blocks:
            if block in begun:
                continue
            meets = self._with[block]
            stops = next(
                (earlier for earlier in reversed(begun) if earlier in meets or earlier > block),
                None,
            )
            if stops is None or stops in meets:
                yield from self._normal_forms(blocks, (*begun, block))


class _Step(Protocol):
    """A part of a program after which another one may go on, and the programs that could have."""

    program: int
    ready: frozenset[int]


@dataclass
class _Node:
    """A state of the current run: the program that went on, and those that still have to."""

    program: int
    ready: frozenset[int]
    tried: set[int]
    wanted: set[int] = field(default_factory=set)


def all_orders(
    run: Callable[[list[int]], Sequence[_Step]], depend: Callable[[Any, Any], bool], most: int
) -> int:
    """Run a representative of every class of orders.

    From a run, the reversal of each pair of dependent steps that nothing between them orders is
    scheduled next (Abdulla, Aronis, Jonsson and Sagonas, *Optimal Dynamic Partial Order Reduction*,
    POPL 2014: source sets, without sleep sets).

    Args:
        run: runs the launch with these choices first; returns all steps, in their order.
        depend: tells whether the order of two steps can matter; true of a program's own.
        most: the largest number of runs.

    Returns:
        The number of runs.

    Raises:
        TooManyError: more than ``most`` runs would be needed.
    """
    nodes: list[_Node] = []
    choices: list[int] = []
    for count in range(1, most + 1):
        steps = run(choices)
        nodes += [_Node(s.program, s.ready, {s.program}) for s in steps[len(nodes) :]]
        _want_reversals(depend, steps, nodes)
        while nodes and not nodes[-1].wanted - nodes[-1].tried:
            nodes.pop()
        if not nodes:
            return count
        last = nodes[-1]
        last.program = min(last.wanted - last.tried)
        last.tried.add(last.program)
        choices = [node.program for node in nodes]
    raise TooManyError


def _want_reversals(
    depend: Callable[[Any, Any], bool], steps: Sequence[_Step], nodes: list[_Node]
) -> None:
    """Add to each state the programs that would reverse a pair of dependent steps."""
    before: list[int] = []  # for each step, a bit set of the steps that come before it in any order
    for later, step in enumerate(steps):
        direct = [i for i in range(later) if depend(steps[i], step)]
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
