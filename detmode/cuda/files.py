"""Files that are written whole or not at all.

It lies in the lowest folder because the cache of compiled code needs it, and a folder imports only
those below it.
"""

from __future__ import annotations

import contextlib
import os


def replace_file(path: str | os.PathLike[str], content: bytes, mode: int = 0o666) -> None:
    """Write a file atomically: a concurrent reader sees the old file or the new one.

    Args:
        path: the file, which may be there.
        content: the whole file.
        mode: the permissions of the new file, less those that the umask takes.

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
