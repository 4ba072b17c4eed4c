"""Callbacks of collectives, run by the thread that attaches them.

A communication hook of ``DistributedDataParallel`` ends in ``work.get_future().then(callback)``. If
the collective is done by then, PyTorch calls the callback at once; else a thread of the backend
calls it, in which no mode acts, at the same time as other callbacks and in any order. Gloo decides
by timing. While a block is open, ``get_future`` waits for the collective, so that every callback is
called at once. NCCL's futures are done when the collective is enqueued: there nothing waits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from detmode.cuda.undo import Lock, Undo

_SENT_OR_RECEIVED = (12, 13, 14)
"""PyTorch's numbers of point-to-point operations: another one may have to begin meanwhile."""


_lock = Lock()
_blocks: set[Undo] = set()
_installed: list[tuple[Any, Any]] = []
"""While a block is open: PyTorch's ``get_future`` and what stands for it."""


def callbacks_at_once(undo: Undo) -> None:
    """Have collectives' callbacks called by the thread that attaches them, until ``undo`` runs."""
    undo.note(functools.partial(_lock.run, _leave, undo))
    _lock.run(_enter, undo)


def _enter(block: Undo) -> None:
    _blocks.add(block)
    work = _work()
    if work is not None and not _installed:
        _installed.append((work.get_future, _waiting(work.get_future)))
        work.get_future = _installed[0][1]


def _leave(block: Undo) -> None:
    _blocks.discard(block)
    if not _blocks and _installed:
        original, ours = _installed[0]
        work = _work()
        if work.get_future is ours:
            work.get_future = original
        _installed.clear()


def _work() -> Any:
    """Return PyTorch's class of running collectives; ``None`` if this build has none."""
    return getattr(getattr(torch._C, "_distributed_c10d", None), "Work", None)


def _waiting(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def get_future(work: Any) -> Any:
        future = original(work)
        if not future.done() and work._get_op_type() not in _SENT_OR_RECEIVED:
            # If it fails, the future says so to whoever asks for its value.
            with suppress(RuntimeError):
                future.wait()
        return future

    return get_future
