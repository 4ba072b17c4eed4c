"""Values: what never changes, so that a copy is the same; and what of them cannot be pickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

V = TypeVar("V", bound="Value")


class Value:
    """An object that never changes: its copies are itself."""

    def __copy__(self: V) -> V:
        return self

    def __deepcopy__(self: V, memo: dict[int, Any]) -> V:
        return self


def check_name(function: Callable[..., Any], what: str) -> None:
    """Refuse to pickle a function that another process cannot find by its name.

    Raises:
        pickle.PicklingError: it is a lambda, or was made inside another function.
    """
    name = getattr(function, "__qualname__", "")
    if "<" in name:
        raise pickle.PicklingError(
            f"{what} cannot be pickled: {function.__module__}.{name} cannot be imported; "
            "define the function at the top of a module"
        )
