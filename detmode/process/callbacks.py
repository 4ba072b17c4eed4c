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

from detmode.process.patched import Patched
from detmode.process.undo import Undo

_SENT_OR_RECEIVED = (12, 13, 14)
"""PyTorch's numbers of point-to-point operations: another one may have to begin meanwhile."""


def callbacks_at_once(undo: Undo) -> None:
    """Have collectives' callbacks called by the thread that attaches them, until ``undo`` runs."""
    _GET_FUTURE.until(undo)


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


_GET_FUTURE = Patched(_work, "get_future", _waiting)
