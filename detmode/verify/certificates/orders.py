"""The orders of blocks that can differ: those that exchange two blocks which touch the same memory.

Two blocks conflict if one writes what the other reads or writes. Exchanging two neighbours that do
not conflict changes no result, so one order of each class stands for all: dynamic partial-order
reduction, as model checkers of threads do it. ``docs/design/certificates.md`` has the argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

__all__ = ["Conflicts"]

LIMIT = 720
"""The most orders that are run: all those of six blocks that all conflict."""
MOST_AT_ONE_PLACE = LIMIT.bit_length()
"""Of a writer and readers there are at least two to the power of the readers."""


class Conflicts:
    """The pairs of blocks that were seen to conflict, and the orders that tell them apart.

    Args:
        blocks: the number of blocks of the grid.
    """

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._with: dict[int, set[int]] = {}
        self._too_many = False

    def add(self, touched: Tensor) -> bool:
        """Add the conflicts of a run; true if one of them is new.

        Args:
            touched: as :attr:`detmode.cuda.host.Watch.touched`: an int64 row of block, kinds of
                access, and two words of where, for each granule that a block accesses.
        """
        places, index = torch.unique(touched[:, 2:], dim=0, return_inverse=True)
        written = torch.zeros(len(places), dtype=torch.bool)
        written[index[touched[:, 1] >= 2]] = True
        visits = torch.unique(torch.stack([index, touched[:, 0]], 1), dim=0)[:, 0]
        blocks = torch.bincount(visits, minlength=len(places))
        shared = (written & (blocks > 1))[index]
        at: dict[int, tuple[set[int], set[int]]] = {}
        for (block, kinds, *_), place in zip(
            touched[shared].tolist(), index[shared].tolist(), strict=True
        ):
            readers, writers = at.setdefault(place, (set(), set()))
            (writers if kinds >= 2 else readers).add(block)
        # So many blocks that meet in one place have more orders than the limit.
        self._too_many |= any(len(a | b) > MOST_AT_ONE_PLACE for a, b in at.values())
        if self._too_many:
            return True
        pairs = {
            (one, other)
            for readers, writers in at.values()
            for one in writers
            for other in readers | writers
            if one != other
        }
        is_new = False
        for one, other in pairs:
            for a, b in ((one, other), (other, one)):
                others = self._with.setdefault(a, set())
                is_new |= b not in others
                others.add(b)
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
            orders = []
            for order in self._normal_forms(component):
                orders.append(order)
                if len(orders) > LIMIT:
                    return None
            of_components.append(orders)
        alone = tuple(block for block in range(self._blocks) if block not in self._with)
        runs = max(map(len, of_components), default=1)
        return [
            tuple(block for orders in of_components for block in orders[run % len(orders)]) + alone
            for run in range(runs)
        ]

    def _components(self) -> Iterator[list[int]]:
        left = set(self._with)
        while left:
            found, reached = set(), [min(left)]
            while reached:
                block = reached.pop()
                if block not in found:
                    found.add(block)
                    reached += self._with[block] - found
            left -= found
            yield sorted(found)

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
            for earlier in reversed(begun):
                if earlier in self._with[block]:
                    yield from self._normal_forms(blocks, (*begun, block))
                    break
                if earlier > block:
                    break
            else:
                yield from self._normal_forms(blocks, (*begun, block))
