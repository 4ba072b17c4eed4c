"""Impossible requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class UsageError(Exception):
    """An impossible request: printed on one line, exit code 2."""


@contextmanager
def usage_errors(
    *errors: type[Exception], about: str = "", told: Callable[[str], str] = str
) -> Iterator[None]:
    """Turn errors in the block into usage errors.

    Args:
        errors: the types of errors.
        about: the begin of their texts.
        told: puts the text of an error into the user's words.
    """
    try:
        yield
    except errors as error:
        raise UsageError(f"{about}{told(str(error))}") from error
