"""Values that are kept up to a number of them."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(dict[K, V]):
    """A dict that :meth:`keep` fills, and that drops its oldest quarter when it is full.

    All at once, as the oldest key of a dict is found the later the more are gone before it. Threads
    may share it.

    Args:
        most: the number of its values at most; at least 4.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, key: K, value: V) -> V:
        """Set the value of a key, and return it."""
        if len(self) >= self._most:
            for oldest in list(self)[: self._most // 4]:
                self.pop(oldest, None)
        self[key] = value
        return value
