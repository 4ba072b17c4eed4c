"""Reading files that others wrote: bounded, and of regular files only.

Nothing that is read is trusted: not its size, not its types, not its texts.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import IO, Any

from detmode.reports.page import in_a_line

MOST_BYTES_OF_JSON = 1 << 24


def open_file(path: Path) -> IO[bytes]:
    """Open a regular file, or a link to one: a pipe is waited for, and a device has no end.

    Raises:
        OSError: there is none, or it cannot be read.
    """
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 -- the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_json(path: Path) -> Any:
    """The value in a file.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: it is not JSON, or larger than what this package writes.
    """
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_BYTES_OF_JSON:
            raise ValueError
        content = file.read(MOST_BYTES_OF_JSON)
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError from None


def text_of(value: Any) -> str:
    """A text, as a report can show it.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, str):
        raise TypeError
    return in_a_line(value)
