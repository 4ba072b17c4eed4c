"""Ending a launch of the host runner that does not end by itself.

A launch runs in C++, where Python's signal handlers wait for its end. It looks at a word of its
:class:`~detmode.cuda.host.watch.Watch` at each access and switch of threads, which is set when its
time is over, and by Ctrl-C. A loop without accesses never looks: it is left by a signal.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator

from detmode.cuda.host.watch import Watch

TIMED_OUT = 1
"""The value of ``stop`` when time is over; Ctrl-C sets another."""
_PAUSE = 0.2
_GRACE = 2.0
"""Seconds after which a launch that is to end cannot be at an access, and is left by a signal."""


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
            watch.stop = TIMED_OUT
        if watch.stop:
            deadline, told = now + _PAUSE, told or now
            if now - told > _GRACE:
                signal.pthread_kill(launching, signal.SIGURG)
