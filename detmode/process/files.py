"""Files that are written whole or not at all, and files of others that are read within bounds.

A temporary folder goes with its block or process, and not with one that was forked.

It lies in the lowest folder because the cache of compiled code needs it, and a folder imports only
those below it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

_STANDARD_STREAMS = (1, 2)


class FileError(ValueError):
    """A file of the user's that is not what it should be: one line with its name and the remedy."""


def replace_file(path: str | os.PathLike[str], content: bytes, mode: int = 0o666) -> None:
    """Write a file atomically: a concurrent reader sees the old file or the new one.

    A link stays a link: its target is written. A device, a pipe, and the file that stdout or stderr
    of this process is, cannot be replaced: they are written to.

    Args:
        path: the file, which may be there.
        content: the whole file.
        mode: the permissions of the new file, less those that the umask takes.

    Raises:
        OSError: it cannot be written; nothing is left beside it.
    """
    stream = _stream(path)
    if stream is not None:
        with open(stream, "wb") as file:
            file.write(content)
        return
    replace_entry(os.path.realpath(path), content, mode)


def replace_entry(path: str | os.PathLike[str], content: bytes, mode: int) -> None:
    """Put a new file in the place of what has this name, be it a link or a pipe, atomically.

    Raises:
        OSError: it cannot be written; nothing is left beside it.
    """
    folder, name = os.path.split(path)
    # In the same folder, so that renaming does not copy.
    written = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        os.replace(written, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(written)
        raise


def _stream(path: str | os.PathLike[str]) -> int | None:
    """Return a descriptor that writes to what cannot be replaced; ``None`` for other files."""
    try:
        about = os.stat(path)
    except FileNotFoundError:
        return None
    for number in _STANDARD_STREAMS:
        with contextlib.suppress(OSError):
            if os.path.samestat(about, os.fstat(number)):
                for text in (sys.stdout, sys.stderr):
                    if text is not None:
                        text.flush()  # what was printed before comes before
                return os.dup(number)
    return None if stat.S_ISREG(about.st_mode) else os.open(path, os.O_WRONLY)


def open_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a regular file, or a link to one; a pipe would block, and a device has no end.

    Raises:
        OSError: there is no such file, it is not a regular one, or it cannot be read.
    """
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 -- the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: there is no such file, it is not a regular one, or it cannot be read.
        ValueError: it is larger.
    """
    with open_file(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most >> 20} MiB")
    return content


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder for the block, which removes it.

    That of ``tempfile`` is also removed by the end of a child that was forked meanwhile.
    """
    path, owner = Path(tempfile.mkdtemp(prefix="detmode-")), os.getpid()
    try:
        yield path
    finally:
        remove_folder(path, owner)


def remove_folder(path: Path, owner: int) -> None:
    """Remove a folder in the process that made it, and not in a forked one."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def parsed_toml(text: str) -> dict[str, Any]:
    """Return the tables of a text in TOML that others wrote.

    Raises:
        ValueError: it is no TOML, or nested too deeply.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parsed_json(text: str | bytes) -> Any:
    """Return the JSON value of a text that others wrote.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
