"""The threads that a program starts inside a block, and what the block wants to do in them.

A dispatch mode belongs to one thread. All threads that Python code starts through ``threading``
(pools and ``asyncio.to_thread`` among them) go through ``Thread.start``, which is replaced while a
block follows them. A thread belongs to the blocks of the thread that has started it.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TypeAlias

from detmode.process.patched import Patched
from detmode.process.undo import Undo

Follower: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Makes the block that is to be open while a thread runs; called in that thread."""

_CARRIERS = ("torch.utils.data.", "detmode.")
"""Modules whose threads only carry on what another thread makes or receives."""

_TASKS = "/proc/self/task"
_PATIENCE = 1.0
_MOST = 1024
_ended: set[int] = set()
"""The operating system's numbers of the noted threads, which have ended or will."""

_logger = logging.getLogger("detmode")


class _Local(threading.local):
    followers: tuple[Follower, ...] = ()


_local = _Local()


def follow_threads(follower: Follower, undo: Undo) -> None:
    """Enter what ``follower`` makes in each thread that is started here until ``undo`` runs.

    Also in those that such a thread starts. Each leaves it when it ends, be it after the block.
    """
    undo.note(functools.partial(undo.run_in_thread, functools.partial(_forget, follower)))
    _local.followers = (*_local.followers, follower)
    _start.until(undo)


def note_thread() -> None:
    """Note that destructors of PyTorch's will need the interpreter when the current thread ends.

    They drop what Python code has stored in the thread: dispatch modes, and what is carried to
    autograd's threads.
    """
    _ended.add(threading.get_native_id())
    if len(_ended) > _MOST:
        _forget_gone(_ended)


def _wait_until_gone() -> None:
    """Wait until the noted threads that have ended are gone for the operating system, too.

    Before Python 3.13 it takes a thread for ended while its destructors still run. If the process
    ends meanwhile, these find no interpreter, and abort. Only Linux can be asked.
    """
    alive = {thread.native_id for thread in threading.enumerate()}
    patient_until = time.monotonic() + _PATIENCE
    while (waiting := _ended - alive) and time.monotonic() < patient_until:
        _forget_gone(waiting)
        time.sleep(1e-4)


def _forget_gone(threads: set[int]) -> None:
    _ended.difference_update(
        [thread for thread in threads if not os.path.exists(f"{_TASKS}/{thread}")]
    )


# After the program's own functions, and before Python ends.
atexit.register(_wait_until_gone)


def _forget(follower: Follower) -> None:
    _local.followers = tuple(
        registered for registered in _local.followers if registered is not follower
    )


def _following(plain: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(plain)
    def start(thread: threading.Thread) -> None:
        followers = _local.followers
        # What runs a thread once it is started: subclasses override run(), and tracebacks begin
        # below it.
        run = getattr(thread, "_bootstrap_inner", None)
        if followers and run is not None and not thread.is_alive() and not _is_carrier(thread):
            vars(thread)["_bootstrap_inner"] = functools.partial(_run, thread, run, followers)
        plain(thread)

    return start


_start = Patched(lambda: threading.Thread, "start", _following)


def _is_carrier(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    return str(getattr(target, "__module__", "")).startswith(_CARRIERS)


def _run(
    thread: threading.Thread, run: Callable[[], None], followers: tuple[Follower, ...]
) -> None:
    vars(thread).pop("_bootstrap_inner", None)  # it refers to the thread
    _local.followers = followers
    note_thread()
    with ExitStack() as stack:
        for follower in followers:
            try:
                block = follower()
                block.__enter__()
                # ExitStack.enter_context looks `__exit__` up in the class, where it may be a
                # property: of a block that ends with what holds it.
                stack.callback(block.__exit__, None, None, None)
            except Exception:
                # The thread that has started this one waits until it runs.
                _logger.exception("a thread is not followed")
        run()
