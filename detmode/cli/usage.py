"""Impossible requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class UsageError(Exception):
    """An impossible request: printed on one line, exit code 2."""


@contextmanager
def usage_errors(*errors: type[Exception], about: str = "") -> Iterator[None]:
    """Turn errors in the block into usage errors, whose text begins with ``about``."""
    try:
        yield
    except errors as error:
        raise UsageError(f"{about}{error}") from error
