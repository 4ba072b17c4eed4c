"""A condition itself: a predicate over one bound call, which prints as it is written."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, wraps
from typing import Any, ParamSpec

import torch

from detmode.table.call import Call
from detmode.table.values import Value, check_name

P = ParamSpec("P")


@dataclass(frozen=True)
class Condition(Value):
    """A predicate over a :class:`~detmode.table.call.Call`, with its text.

    Conditions with the same text are equal, so that duplicate rows can be found. Those of
    :mod:`detmode.conditions` can be pickled, and others whose predicate is a module's function.

    >>> from detmode.conditions import argument, on
    >>> print(on("cuda") & argument("accumulate", True))
    on('cuda') & argument('accumulate', True)

    Args:
        text: the text of the condition: the expression that creates it.
        holds: the predicate itself.
        arguments: the schema names that the predicate reads.
        dtypes: the dtypes that it requires; for a joint condition, those of its first part that
            requires any.
        devices: the types of device of which it requires one; for a joint condition, those of its
            first part that requires any.
        needs_sparse: true if it requires a tensor of a sparse layout.
        made_by: recreates the condition when it is unpickled, if its predicate cannot be pickled.
        environment: returns whether the process's environment lets it hold for any call; ``None``
            if it does not depend on that.
    """

    text: str
    holds: Callable[[Call], bool]
    arguments: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()
    devices: tuple[str, ...] = ()
    needs_sparse: bool = False
    made_by: Callable[[], Condition] | None = field(default=None, repr=False)
    environment: Callable[[], bool] | None = field(default=None, repr=False)

    def __call__(self, call: Call) -> bool:
        """Return whether the condition holds for a call."""
        return self.holds(call)

    @cached_property
    def reads_values(self) -> bool:
        """True if it may depend on more than the form of a call: if its predicate is not detmode's.

        Sizes, strides, dtypes, devices and numbers are the form; the elements of tensors are not.
        """
        if isinstance(self.made_by, partial) and self.made_by.func is operator.and_:
            return any(part.reads_values for part in self.made_by.args)
        return self.holds.__module__.partition(".")[0] != __name__.partition(".")[0]

    def __and__(self, other: Condition) -> Condition:
        first, second = self.holds, other.holds
        return Condition(
            f"{self.text} & {other.text}",
            lambda call: first(call) and second(call),
            self.arguments + other.arguments,
            self.dtypes or other.dtypes,
            self.devices or other.devices,
            self.needs_sparse or other.needs_sparse,
            partial(operator.and_, self, other),
            _both(self.environment, other.environment),
        )

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[Callable[..., Condition], tuple[Any, ...]]:
        if self.made_by is not None:
            return self.made_by, ()
        check_name(self.holds, f"the condition {self.text}")
        return Condition, (
            *(self.text, self.holds, self.arguments, self.dtypes),
            *(self.devices, self.needs_sparse),
        )


def _both(
    first: Callable[[], bool] | None, second: Callable[[], bool] | None
) -> Callable[[], bool] | None:
    if first is None or second is None:
        return first or second
    return lambda: first() and second()


def by_name(make: Callable[P, Condition]) -> Callable[P, Condition]:
    """Print and pickle the conditions that ``make`` returns as the call that created them.

    A condition that has a text already keeps it.
    """

    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> Condition:
        condition = make(*args, **kwargs)
        call = f"{make.__name__}({', '.join(map(repr, (*args, *kwargs.values())))})"
        text, made_by = condition.text or call, partial(made, *args, **kwargs)
        return replace(condition, text=text, made_by=made_by)

    return made


unnamed = partial(Condition, "")


def _always(call: Call) -> bool:
    return True


ALWAYS = Condition("always", _always)
"""The condition of a chain's last row."""
