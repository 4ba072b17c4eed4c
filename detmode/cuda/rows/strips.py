"""Planes of a tensor whose elements blocks collect in shared memory, a strip of a plane each.

A block looks at all that is added or assigned to its plane, and takes what meets its strip.
Integers that any order adds to the same sum, or of which any order finds the same largest, have
the same bits there as in memory: the choice, which depends on the GPU, changes none.
"""

from __future__ import annotations

from typing import NamedTuple

_FEWEST_BLOCKS = 64
"""From which a GPU has more to do than in memory, where more threads are at work."""
_FEW_BLOCKS = 1 << 12
"""Up to which they take less time than several launches, however little they have to do."""
_LEAST_PLANE = 1 << 8
"""Elements of a plane, and for it, from which more blocks are worth it: each waits for memory and
for all of its threads several times."""
_MOST_BLOCKS = 1 << 16
_SHARES = 4, 2, 1
"""Blocks that may share a multiprocessor's memory, and its threads."""
_MULTIPROCESSORS = 128
"""Of a large GPU. With fewer blocks for each than may share it, they have more threads instead."""
_RESERVED = 1024
"""Bytes of shared memory that a GPU takes for itself, for each block."""
_STEP = 4096
"""Bytes of shared memory that a launch asks for are a multiple of this, so that there are few
launches of a kernel, and all that it does not ask for is cache."""


class Strips(NamedTuple):
    """A launch.

    Args:
        blocks: of the launch, which take turns if there are more strips.
        threads: of a block.
        shared: bytes of shared memory of a block.
        strip: elements of a strip; the last one of a plane may have fewer.
        strips: of each plane.
    """

    blocks: int
    threads: int
    shared: int
    strip: int
    strips: int


def strips_of(
    planes: int,
    size: int,
    reads: int,
    element_bytes: int,
    most_shared: int,
    most_strips: int,
    most_threads: int = 1024,
) -> Strips | None:
    """Cut planes into strips, as few as possible.

    Args:
        planes: their number.
        size: elements of each.
        reads: elements that are added or assigned to each, at which every block of it looks.
        element_bytes: of shared memory, for an element of a plane.
        most_shared: bytes that a block may have.
        most_strips: of a plane, into which it is worth it.
        most_threads: of a block.

    Returns:
        The launch; None where memory is better: for many strips, for few blocks, and for very
        many that have next to nothing to do. Nor do planes have strips without elements, or
        without shared memory for one.
    """
    if size == 0 or most_shared < element_bytes or planes * most_strips < _FEWEST_BLOCKS:
        return None
    strips = -(-size // (most_shared // element_bytes))
    blocks, strip = planes * strips, -(-size // strips)
    if strips > most_strips or blocks < _FEWEST_BLOCKS:
        return None
    if blocks > _FEW_BLOCKS and size + reads < _LEAST_PLANE:
        return None
    for share in _SHARES:
        shared = (most_shared + _RESERVED) // share - _RESERVED
        if strip * element_bytes <= shared and blocks >= share * _MULTIPROCESSORS:
            break
    shared = min(shared, -(-strip * element_bytes // _STEP) * _STEP)
    return Strips(min(blocks, _MOST_BLOCKS), most_threads // share, shared, strip, strips)
