"""``allow``: exempt operators for a block, and for the backward of what is called in it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from detmode.mode.decorator import decorated
from detmode.mode.options import operator_names
from detmode.process.dispatch import untraced
from detmode.process.undo import Undo, leaving, tell_if_elsewhere, undone, undone_at_end
from detmode.sites.forward_memory import forward_memory
from detmode.table.names import Operator

F = TypeVar("F", bound=Callable[..., Any])


class allow:
    """Run the named operators inside a block as PyTorch runs them without its flag.

    So do their backward operators when backward runs later, outside the block; they are recognised
    by the sequence numbers of autograd nodes. A re-entrant context manager and decorator, which
    affects only the thread that enters it. A generator function that it decorates is in the block
    while it runs, and outside while it waits.

    >>> with detmode.DeterministicMode(simulate="cuda") as mode, detmode.allow("torch.histc"):
    ...     counts = torch.histc(torch.ones(9), bins=3)
    >>> [row.action for row in mode.records]
    ['allow']

    Args:
        operators: PyTorch's functions and modules by name (``"torch.histc"``, ``"F.interpolate"``)
            or themselves (``torch.histc``); operators and overloads, forward or backward
            (``"aten::histc"``, ``"aten::put_.default"``, ``torch.ops.aten.histc``), or globs of
            them (``"torchvision::*"``).

    Raises:
        TypeError: an operator is none of these, or none is given; or a coroutine function is to be
            decorated.
        ValueError: no function and no loaded library's operator has such a name.
    """

    @untraced
    def __init__(self, *operators: Operator) -> None:
        if not operators:
            raise TypeError('allow() needs at least one operator, such as allow("aten::histc")')
        self._operators = operator_names("allow()", operators)
        self._entered: dict[Undo, None] = {}

    def __repr__(self) -> str:
        return f"allow({', '.join(map(repr, self._operators))})"

    @untraced
    def __enter__(self) -> allow:
        undo = undone_at_end(self, Undo())
        undo.note(functools.partial(self._entered.pop, undo, None))
        self._entered[undo] = None
        forward_memory().open_region(self._operators, undo)
        return self

    @untraced
    def _exit(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        undo: Undo | None = None,
    ) -> None:
        message = "allow(): this thread leaves a region that it has not entered"
        tell_if_elsewhere(undone(undo, self._entered, message), "allow()", error)

    __exit__ = leaving(_exit)

    def __call__(self, function: F) -> F:
        """Decorate ``function``: each of its calls runs inside the region."""
        return decorated(self, "allow()", function)
