"""The cache of compiled code, which is verified at each load.

Cached files are executed, so only this user and root may be able to write the folder and the file.
Each file has a digest; a truncated or changed file is compiled again. If there is no such folder,
code is kept in a private one until the process ends. Of several processes that need a file, one
compiles it and the others wait.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from detmode.cuda.source import CompileError
from detmode.process.files import remove_folder, replace_entry

_DIGEST = ".digest"
_REMEDY = "set DETMODE_CACHE to a folder that only you can write"
_PREBUILT = Path(__file__).parents[2] / "detmode_kernels"
"""Code that was compiled elsewhere, beside the package: a copy of a cache, only ever read."""
_PATIENCE = 600
"""The seconds for which a process waits for another that compiles; a stopped one never ends."""
_PRIVATE = f"Compiled code is kept in a private folder until this process ends; {_REMEDY}"
# Do not follow a link in place of a file, and do not block on a pipe.
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class _Folder:
    """A folder that only this user and root may write, held open.

    Files are accessed through the descriptor if the system supports it, so that a user who may
    rename a parent folder cannot replace this one. A loaded library holds its folder.

    Raises:
        OSError: the folder does not exist, or others may write it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = str(path)
        self._descriptor: int | None = None
        if hasattr(os, "O_PATH") and os.path.isdir("/proc/self/fd"):
            self._descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY)
            self._at = f"/proc/self/fd/{self._descriptor}"
        problem = _problem(os.stat(self._at))
        if problem is not None:
            raise OSError(errno.EPERM, problem, str(path))

    def __del__(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)

    def at(self, name: str) -> str:
        """Return the path of a file, valid in this process only."""
        return os.path.join(self._at, name)

    def find(self, name: str) -> CachedFile | None:
        """Return a file and the note stored with it; None if it is missing or has changed."""
        content, record = self._read(name), self._read(name + _DIGEST)
        if content is None or record is None:
            return None
        digest, _, note = record.decode(errors="replace").partition("\n")
        if digest != _digest(name, note, content):
            return None
        return CachedFile(self, self.path / name, self.at(name), note, is_new=False)

    def keep(self, name: str, content: bytes, note: str) -> CachedFile:
        """Write a file, its digest and its note, each atomically; return it."""
        record = f"{_digest(name, note, content)}\n{note}".encode()
        for entry, written in ((name, content), (name + _DIGEST, record)):
            # Others may read it if the umask allows, because the cache may be shared.
            replace_entry(self.at(entry), written, 0o644)
        return CachedFile(self, self.path / name, self.at(name), note, is_new=True)

    def _read(self, name: str) -> bytes | None:
        try:
            with open(os.open(self.at(name), _READ), "rb") as file:
                status = os.fstat(file.fileno())
                problem = _problem(status)
                if problem is None:
                    return file.read() if stat.S_ISREG(status.st_mode) else None
        except OSError:
            return None
        _warn(f"{self.path / name} is not used, but compiled again: {problem}")
        return None


@dataclass(frozen=True)
class CachedFile:
    """A verified file of the cache.

    Args:
        folder: the folder that holds the file.
        path: the file's path.
        loaded_from: the path from which this process loads the verified file while the folder is
            held open.
        note: the note that was stored with it.
        is_new: true if it was compiled for this call, and not found.
    """

    folder: _Folder
    path: Path
    loaded_from: str
    note: str
    is_new: bool


def find(kind: str, name: str) -> CachedFile | None:
    """Return the file `name` of the cache's folder `kind`; None if the cache does not have it.

    Args:
        kind: `"cuda"`, `"host"` or `"native"`.
        name: the file's name.
    """
    private = _private(kind) if _private_root is not None else None
    return _found(_prebuilt(kind), name) or _found(_shared(kind), name) or _found(private, name)


def take(kind: str, name: str, make: Callable[[], tuple[bytes, str]]) -> CachedFile:
    """Return the file `name` of the cache's folder `kind`, created if the cache does not have it.

    A file beside the package is preferred, unless the user has chosen a cache. If the cache cannot
    be read or written, or others may write it, a RuntimeWarning says so once, and the file is kept
    in a private folder until the process ends.

    Args:
        kind: as for `find`.
        name: the file's name, with a hash of everything that the content depends on.
        make: returns the content, and a note to store with it. It is called by one process of
            those that share the cache, while the others wait; if it fails, by the next.

    Raises:
        CompileError: no folder can be written, or `make` raises it.
    """
    file = find(kind, name)
    if file is not None:
        return file
    shared = _shared(kind)
    with _locked(shared, name):
        return _found(shared, name) or _made(shared, kind, name, make)


def _found(folder: _Folder | None, name: str) -> CachedFile | None:
    return None if folder is None else folder.find(name)


def _made(
    shared: _Folder | None, kind: str, name: str, make: Callable[[], tuple[bytes, str]]
) -> CachedFile:
    content, note = make()
    if shared is not None:
        try:
            return shared.keep(name, content, note)
        except OSError as error:
            _warn(f"the cache {shared.path} cannot be written: {error.strerror}. {_PRIVATE}")
    try:
        return _private(kind).keep(name, content, note)
    except OSError as error:
        raise CompileError(
            f"compiled kernels cannot be kept anywhere ({error}); {_REMEDY}"
        ) from None


@contextlib.contextmanager
def _locked(folder: _Folder | None, name: str) -> Iterator[None]:
    """Hold a file's lock, which the system releases if this process dies.

    Without a folder that can be written, and after waiting in vain, the block runs without it:
    then the file is only compiled more often.
    """
    if folder is None:
        yield
        return
    from filelock import FileLock  # imported with the first compilation

    lock = FileLock(folder.at(f"{name}.lock"), timeout=_PATIENCE, mode=0o644)
    with contextlib.suppress(OSError):  # among others Timeout
        lock.acquire()
    try:
        yield
    finally:
        if lock.is_locked:
            # A process that still waits on the removed file finds what was kept.
            with contextlib.suppress(OSError):
                os.unlink(lock.lock_file)
            lock.release()


def _prebuilt(kind: str) -> _Folder | None:
    """Return the folder beside the package, or None if there is none or it cannot be used.

    A cache that the user has chosen is the only one.
    """
    if os.environ.get("DETMODE_CACHE"):
        return None
    try:
        return _Folder(_PREBUILT / kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn(f"the prebuilt kernels cannot be used: {error}")
        return None


def _shared(kind: str) -> _Folder | None:
    """Return the cache's folder, or None if it cannot be used."""
    try:
        directory = _root() / kind
        # Others cannot write it, whatever the umask.
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        return _Folder(directory)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        _warn(f"the cache of compiled kernels cannot be used: {error}. {_PRIVATE}")
        return None


def _root() -> Path:
    """Return `$DETMODE_CACHE`, else `detmode` in the user's cache directory."""
    chosen = os.environ.get("DETMODE_CACHE")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "detmode"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "detmode"


# Shared by this process and those that it forks.
_private_root: Path | None = None


def _private(kind: str) -> _Folder:
    """Return the private folder of this process, which is removed when the process ends."""
    global _private_root
    root = _private_root
    # It may have been removed by the parent process, or by a cleanup of temporary files.
    if root is None or not root.is_dir():
        root = _private_root = Path(tempfile.mkdtemp(prefix="detmode-"))
        atexit.register(remove_folder, root, os.getpid())
    directory = root / kind
    directory.mkdir(mode=0o700, exist_ok=True)
    return _Folder(directory)


def _problem(status: os.stat_result) -> str | None:
    """Return the reason why a folder or file must not be used; None if it may be."""
    if not hasattr(os, "geteuid"):
        return None  # on Windows, where owners and modes have no meaning
    if status.st_uid not in (0, os.geteuid()):
        return f"it belongs to another user (uid {status.st_uid})"
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write it (mode {mode:04o}; chmod go-w forbids it)"
    return None


def _digest(name: str, note: str, content: bytes) -> str:
    sha = hashlib.sha256(f"{name}\0{note}\0".encode())
    sha.update(content)
    return sha.hexdigest()


_said: set[str] = set()


def _warn(text: str) -> None:
    if text not in _said:
        _said.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=2)
