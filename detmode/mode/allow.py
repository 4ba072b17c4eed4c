"""``allow``: exempt operators for a block, and for the backward of what is called in it."""

from __future__ import annotations

from contextlib import ContextDecorator
from types import TracebackType

from detmode.cuda.undo import Undo, leaving, undone_at_end
from detmode.environment.dispatch import untraced
from detmode.mode.options import operator_names
from detmode.sites.forward_memory import forward_memory
from detmode.table.names import Operator


class allow(ContextDecorator):
    """Run the named operators inside a block as PyTorch runs them without its flag.

    So do their backward operators when backward runs later, outside the block; they are recognised
    by the sequence numbers of autograd nodes. A re-entrant context manager and decorator, which
    affects only the thread that enters it.

    Args:
        operators: operator or overload names (``"aten::histc"``, ``"aten::put_.default"``),
            forward or backward, or globs of them (``"torchvision::*"``); or the operators and
            overloads themselves (``torch.ops.aten.histc``).

    Raises:
        TypeError: an operator is none of these, or none is given.
        ValueError: a name has no namespace, or no loaded library has such an operator.
    """

    @untraced
    def __init__(self, *operators: Operator) -> None:
        if not operators:
            raise TypeError('allow() needs at least one operator, such as allow("aten::histc")')
        self._operators = operator_names("allow()", operators)

    def __repr__(self) -> str:
        return f"allow({', '.join(map(repr, self._operators))})"

    @untraced
    def __enter__(self) -> allow:
        forward_memory().open_region(self, self._operators, undone_at_end(self, Undo()))
        return self

    @untraced
    def _exit(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        forward_memory().close_region(self)

    __exit__ = leaving(_exit)
