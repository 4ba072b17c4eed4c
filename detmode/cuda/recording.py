"""The block in which what a launcher does is written down, and what launchers tell it.

While a :func:`recording` is entered in a thread, its recorder sees what launchers do: their
allocations and launches by a line in the functions that make them, what they call of ATen by a
dispatch mode, and what they read on the host by a mode for functions of Python's.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from detmode.cuda.plan import CONSTANT, LARGEST, Look
from detmode.cuda.recorder import HOST_READ, Recorder
from detmode.process.undo import Undo

F = TypeVar("F", bound=Callable[..., Any])

_HOST_READS = frozenset(
    getattr(Tensor, name) for name in ("tolist", "numpy", "__array__", "__dlpack__", "item")
)


class _Thread(threading.local):
    recorder: Recorder | None = None


thread = _Thread()
"""Has the recorder of the current thread, while it records."""


def recording(
    inputs: Sequence[Tensor], writes: Sequence[int] = ()
) -> AbstractContextManager[Recorder]:
    """Return a block in which what the current thread launches is recorded.

    Args:
        inputs: the call's tensors, in the order of its arguments; in place of each sparse one, the
            dense ones in which its elements lie.
        writes: the positions of those that the call writes to.

    Returns:
        The block, which gives the recorder of the plan.
    """
    return Undo(functools.partial(_record, inputs, writes))


def _record(inputs: Sequence[Tensor], writes: Sequence[int], undo: Undo) -> Recorder:
    recorder = Recorder(inputs, writes)
    undo.note(functools.partial(setattr, thread, "recorder", thread.recorder))
    for count, pop in _STACKS:
        undo.note(functools.partial(_shorten, count, pop, count()))
    torch._C._push_on_torch_dispatch_stack(recorder)
    # The recorder does not refer to it: in a circle, the tensors of the call would live on.
    torch._C._push_on_torch_function_stack(_HostReads(recorder))
    thread.recorder = recorder
    return recorder


_STACKS: tuple[tuple[Callable[[], int], Callable[[], object]], ...] = (
    (
        torch._C._len_torch_dispatch_stack,
        functools.partial(torch._C._pop_torch_dispatch_stack, None),
    ),
    (torch._C._len_torch_function_stack, torch._C._pop_torch_function_stack),
)


def _shorten(count: Callable[[], int], pop: Callable[[], object], length: int) -> None:
    while count() > length:
        pop()


class _HostReads(TorchFunctionMode):
    """Notes that values are read on the host, of which ATen sees nothing for CPU tensors."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _HOST_READS:
            self._recorder.refuse(HOST_READ)
        return func(*args, **kwargs) if kwargs else func(*args)


def one_above(values: Tensor, least: int) -> int | None:
    """Return one more than the largest of integers, or ``least`` if that is more.

    A plan looks again, so what is launched afterwards may depend on the number.

    Args:
        values: integers, at least one.
        least: for smaller ones.

    Returns:
        ``None`` if one is negative.
    """
    recorder = thread.recorder
    if recorder is None:
        return _one_above(values, least)
    with torch._C.DisableTorchFunction():
        recorder.look(Look(LARGEST, CONSTANT, least), values, HOST_READ)
    return cast("int | None", recorder.apart(_one_above, values, least))


def _one_above(values: Tensor, least: int) -> int | None:
    smallest, largest = torch.stack(torch.aminmax(values)).tolist()
    return None if smallest < 0 else max(largest + 1, least)


def host_check(function: F) -> F:
    """Mark a function that looks at values of CPU tensors and may raise: a plan calls it again.

    It returns nothing, and does nothing for a GPU's tensors.
    """

    @functools.wraps(function)
    def check(*args: Any, **kwargs: Any) -> None:
        if thread.recorder is None:
            function(*args, **kwargs)
        else:
            thread.recorder.check(function, args, kwargs)

    return cast("F", check)
