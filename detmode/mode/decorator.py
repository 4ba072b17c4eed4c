"""Blocks as decorators: a block around each call of a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from torch.utils._contextlib import context_decorator

__tracebackhide__ = True

F = TypeVar("F", bound=Callable[..., Any])


def decorated(block: AbstractContextManager[Any], name: str, function: F) -> F:
    """Return ``function``, each of whose calls runs inside ``block``, which may be entered anew.

    Args:
        block: of a generator it is entered while the generator runs, and left while it waits.
        name: of the block, for messages.
        function: to decorate.

    Raises:
        TypeError: ``function`` cannot be called, or it is a coroutine function.
    """
    if not callable(function):
        raise TypeError(f"{name} decorates a function, got {type(function).__name__}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{name} cannot decorate a coroutine function: other tasks would run inside its "
            "block; write 'with' around what does not await"
        )
    if inspect.isgeneratorfunction(function):
        # PyTorch's helper, that of torch.no_grad, has no types.
        return context_decorator(lambda: block, function)  # type: ignore[no-any-return]

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with block:
            return function(*args, **kwargs)

    return wrapper  # type: ignore[return-value]  # a wrapper has the wrapped one's type
