"""Reading untrusted files: regular files only, up to a size limit.

Neither the size nor the types nor the texts of what is read are trusted.
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
    """Open a regular file, or a link to one; a pipe would block, and a device has no end.

    Raises:
        OSError: there is no such file, or it cannot be read.
    """
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 -- the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_json(path: Path) -> Any:
    """Return the JSON value in a file.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: it is not JSON, or larger than anything this package writes.
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
    """Return a text in a form that a report can show.

    Raises:
        TypeError: ``value`` is not a text.
    """
    if not isinstance(value, str):
        raise TypeError
    return in_a_line(value)
