"""Dicts of a bounded number of values."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def keep_bounded(values: dict[K, V], key: K, value: V, most: int) -> V:
    """Set the value of a key, and return it; if the dict is full, its oldest quarter is dropped.

    All at once, as the oldest key of a dict is found the later the more are gone before it. Threads
    may share the dict.

    Args:
        values: the dict.
        key: of the value.
        value: to set.
        most: the number of values at most; at least 4.
    """
    if len(values) >= most:
        for oldest in list(values)[: most // 4]:
            values.pop(oldest, None)
    values[key] = value
    return value
