"""Sizes or strides of a batch of images or volumes, as kernels take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Extents(NamedTuple):
    """The struct of ``extents.cuh``: batch, channels, depth, height and width."""

    n: int
    c: int
    d: int
    h: int
    w: int

    @classmethod
    def sizes(cls, sizes: Sequence[int]) -> Extents:
        """Of (N, C, H, W) or (N, C, D, H, W)."""
        n, c, *others = sizes
        return cls(n, c, *others) if len(others) == 3 else cls(n, c, 1, *others)

    @classmethod
    def strides(cls, strides: Sequence[int]) -> Extents:
        """In the order of the sizes."""
        n, c, *others = strides
        return cls(n, c, *others) if len(others) == 3 else cls(n, c, 0, *others)
