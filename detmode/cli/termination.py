"""Last words of a process that is stopped: by a cluster, or by a launcher whose rank has failed."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def when_terminated(act: Callable[[], None]) -> Iterator[None]:
    """Act when SIGTERM ends this process in the block; it ends by SIGTERM all the same.

    A thread acts, because the main thread may be in a collective that never returns. Where the
    program has a handler of its own, that one decides. Windows has no such signal.
    """
    if (
        os.name != "posix"
        or threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def pass_on(*_: object) -> None:
        # Python has written it there already, unless the program has chosen another descriptor.
        os.write(write, bytes([signal.SIGTERM]))

    def decides() -> bool:
        return signal.getsignal(signal.SIGTERM) is pass_on

    def watch() -> None:
        while number := os.read(read, 1):
            if number[0] == signal.SIGTERM and decides():
                try:
                    act()
                finally:
                    # Only the main thread may set a handler through Python.
                    ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
                    os.kill(os.getpid(), signal.SIGTERM)
        os.close(read)

    def block() -> None:
        # A child that is stopped as soon as it is there would write to the pipe, which is the
        # parent's until `in_child` has run: this process would end in its place.
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def in_child() -> None:
        if decides():
            with suppress(ValueError):  # forked by another thread
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.set_wakeup_fd(-1)
        unblock()

    masks = threading.local()
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=in_child)
    signal.signal(signal.SIGTERM, pass_on)
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=watch, name="detmode-termination", daemon=True).start()
    try:
        yield
    finally:
        if decides():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if (current := signal.set_wakeup_fd(before)) != write:
            signal.set_wakeup_fd(current)  # the program's own, such as that of an event loop
        os.close(write)  # ends the thread
