"""The threads that a program starts inside a block, and what the block wants to do in them.

A dispatch mode belongs to one thread. All threads that Python code starts through ``threading``
(pools and ``asyncio.to_thread`` among them) go through ``Thread.start``, which is replaced while a
block follows them. A thread belongs to the blocks of the thread that has started it.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeAlias

from detmode.cuda.undo import Lock, Undo

Follower: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Makes the block that is to be open while a thread runs; called in that thread."""

_OF_PYTORCH = "torch.utils.data."
"""Modules whose threads only carry tensors on, which the thread that receives them meets."""

_logger = logging.getLogger("detmode")
_lock = Lock()
_blocks: set[Undo] = set()
_replaced: list[tuple[Any, Any]] = []
"""While a block follows threads: ``Thread.start``, and what stands for it."""


class _Local(threading.local):
    followers: tuple[Follower, ...] = ()


_local = _Local()


def follow_threads(follower: Follower, undo: Undo) -> None:
    """Enter what ``follower`` makes in each thread that is started here until ``undo`` runs.

    Also in those that such a thread starts. Each leaves it when it ends, be it after the block.
    """
    undo.note(functools.partial(_lock.run, _leave, undo))
    undo.note(functools.partial(_forget, follower))
    _local.followers = (*_local.followers, follower)
    _lock.run(_enter, undo)


def _forget(follower: Follower) -> None:
    _local.followers = tuple(each for each in _local.followers if each is not follower)


def _enter(block: Undo) -> None:
    _blocks.add(block)
    if not _replaced:
        _replaced.append((threading.Thread.start, _following(threading.Thread.start)))
        threading.Thread.start = _replaced[0][1]  # type: ignore[method-assign]


def _leave(block: Undo) -> None:
    _blocks.discard(block)
    if not _blocks and _replaced:
        plain, ours = _replaced.pop()
        if threading.Thread.start is ours:
            threading.Thread.start = plain  # type: ignore[method-assign]


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


def _is_carrier(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    return str(getattr(target, "__module__", "")).startswith(_OF_PYTORCH)


def _run(
    thread: threading.Thread, run: Callable[[], None], followers: tuple[Follower, ...]
) -> None:
    vars(thread).pop("_bootstrap_inner", None)  # it refers to the thread
    _local.followers = followers
    with ExitStack() as stack:
        for follower in followers:
            try:
                stack.enter_context(follower())
            except Exception:
                # The thread that has started this one waits until it runs.
                _logger.exception("a thread is not followed")
        run()
