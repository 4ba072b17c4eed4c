"""The share of a thread that adds up elements of a result in many planes, or channels, alike."""

from __future__ import annotations

from typing import NamedTuple

from detmode.cuda import index_ctype

PER_THREAD = 8
"""Planes (or channels) that one thread serves where there are many."""
MANY = 2**18
"""Elements from which a thread serves several planes; with fewer, more threads are better."""


class Share(NamedTuple):
    """The planes, or channels, that a thread serves, and the type in which it counts."""

    per_thread: int
    counter: str


def choose_share(planes: int, numel: int, *counts: int, least: int = PER_THREAD) -> Share:
    """Choose a thread's share.

    Args:
        planes: those that are shared out, or channels.
        numel: elements of the result.
        counts: other numbers that a thread counts up to.
        least: planes from which a thread serves several.
    """
    several = numel >= MANY and planes >= least
    return Share(PER_THREAD if several else 1, index_ctype(numel, *counts))
