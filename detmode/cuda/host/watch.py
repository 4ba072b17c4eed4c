"""Launches of the host runner that are watched, and that may be told to end."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor


class Watch(ctypes.Structure):
    """A launch that is watched closely: blocks may stop midway, and what they touch is noted.

    Such a launch looks for accesses out of bounds, too, and its kernels may spin. It needs the
    build with races.

    Attributes:
        races: whether clocks are compared, to find data races.
        stopped: the number of times that a block stopped midway.
        atomics: the bits of the atomics that ran, as in intrinsics.h.
        stop: not 0 if the launch was ended before its end.
        timeout: the seconds after which it is.
    """

    _fields_ = [
        ("order", ctypes.c_void_p),
        ("races", ctypes.c_int),
        ("_touched", ctypes.c_void_p),
        ("_capacity", ctypes.c_longlong),
        ("_n_touched", ctypes.c_longlong),
        ("stopped", ctypes.c_int),
        ("atomics", ctypes.c_uint),
        ("stop", ctypes.c_int),
        ("_float_adds", ctypes.c_uint * 4),
    ]

    def __init__(
        self,
        *,
        races: bool,
        order: Sequence[int] | None = None,
        capacity: int = 0,
        timeout: float | None = None,
    ) -> None:
        self.timeout = timeout
        self.block_order = order
        self._order = None if order is None else (ctypes.c_uint * len(order))(*order)
        self._records = torch.empty(capacity, 2, dtype=torch.int64, device="cpu")
        super().__init__(
            order=ctypes.addressof(self._order) if self._order else None,
            races=races,
            _touched=self._records.data_ptr(),
            _capacity=capacity,
        )

    @property
    def float_adds(self) -> set[int]:
        """The first few places where atomics added floats, for :meth:`Library.line_of`."""
        return {place for place in self._float_adds if place}

    @property
    def touched(self) -> Tensor | None:
        """Rows of a block, its kind of access and two of where; or None.

        The kinds are 1 for reads, 2 for writes, 3 for both, and from 4 on one for each operation
        that commutes with itself. None: there were more rows than asked for.
        """
        if self._n_touched > self._capacity:
            return None
        rows = self._records[: self._n_touched]
        word = rows[:, 0]
        return torch.stack([word & 0xFFFFFFFF, word >> 32 & 0xFF, word >> 40, rows[:, 1]], 1)
