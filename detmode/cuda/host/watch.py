"""Launches of the host runner that are watched, and that are ended if they do not end themselves.

A launch runs in C++, where Python's signal handlers wait for its end. It looks at a word of its
:class:`Watch` at each access and switch of threads, which is set when its time is over, and by
Ctrl-C. A loop without accesses never looks: it is left by a signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_TIMED_OUT = 1
"""The value of ``stop`` when time is over; Ctrl-C sets another."""
_PAUSE = 0.2
_GRACE = 2.0
"""Seconds after which a launch that is to end cannot be at an access, and is left by a signal."""


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


@contextlib.contextmanager
def limited(watch: Watch) -> Iterator[None]:
    """End the launch in the block, which this OS thread makes, when its time is over."""
    if watch.timeout is None:
        yield
        return
    ended = threading.Event()
    arguments = (watch, watch.timeout, threading.get_ident(), ended)
    threading.Thread(target=_look, args=arguments, name="detmode-limit", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _look(watch: Watch, timeout: float, launching: int, ended: threading.Event) -> None:
    deadline = time.monotonic() + timeout
    told = None
    while not ended.wait(max(min(_PAUSE, deadline - time.monotonic()), 0.01)):
        now = time.monotonic()
        if not watch.stop and now >= deadline:
            watch.stop = _TIMED_OUT
        if watch.stop:
            deadline, told = now + _PAUSE, told or now
            if now - told > _GRACE:
                signal.pthread_kill(launching, signal.SIGURG)
