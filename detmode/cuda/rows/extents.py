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
        return cls(*sizes[:2], *(1,) * (5 - len(sizes)), *sizes[2:])

    @classmethod
    def strides(cls, strides: Sequence[int]) -> Extents:
        """In the order of the sizes."""
        return cls(*strides[:2], *(0,) * (5 - len(strides)), *strides[2:])
