"""Sizes or strides of a batch of images or volumes, as kernels take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class _Extents(NamedTuple):
    """The struct of ``extents.cuh``: batch, channels, depth, height and width."""

    n: int
    c: int
    d: int
    h: int
    w: int


def sizes_of(sizes: Sequence[int]) -> _Extents:
    """Return the sizes of (N, C, H, W) or (N, C, D, H, W); an image has the depth 1."""
    n, c, h, w = sizes[0], sizes[1], sizes[-2], sizes[-1]
    return _Extents(n, c, sizes[2] if len(sizes) > 4 else 1, h, w)


def strides_of(strides: Sequence[int]) -> _Extents:
    """Return the strides of such a tensor; along an image's depth it is 0."""
    n, c, h, w = strides[0], strides[1], strides[-2], strides[-1]
    return _Extents(n, c, strides[2] if len(strides) > 4 else 0, h, w)
