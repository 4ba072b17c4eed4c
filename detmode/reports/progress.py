"""Progress of long work: on a terminal only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def progress(items: Iterable[T], what: str, unit: str) -> Iterable[T]:
    """The items, counted on stderr where that is a terminal and they take more than a second.

    Args:
        items: values that are worked on, one after the other.
        what: the work's name.
        unit: the name of one item.
    """
    from tqdm import tqdm  # imported with the first long work

    # None: only on a terminal.
    return tqdm(items, what, unit=f" {unit}", disable=None, leave=False, delay=1)
