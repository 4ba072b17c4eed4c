"""Files of the user's code, and the program's own among them."""

from __future__ import annotations

import os
import sys
from functools import lru_cache

import torch

import detmode
from detmode.table.call_site import installed_part

_INTERNAL_DIRECTORIES = tuple(
    os.path.join(os.path.abspath(package.__path__[0]), "") for package in (torch, detmode)
)
_STANDARD_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
_INSTALLED = tuple(
    os.path.join(_STANDARD_LIBRARY, name, "") for name in ("site-packages", "dist-packages")
)
_SCRIPTS = os.path.join(sys.prefix, "Scripts" if os.name == "nt" else "bin", "")
_FILES = 1 << 12


@lru_cache(_FILES)
def is_users(file: str) -> bool:
    """Return whether a file holds the user's code; bounded, since generated files may be many."""
    if file.startswith(_INTERNAL_DIRECTORIES) or file.startswith("<frozen"):
        return False
    if is_inductors(file):
        return False
    # A call inside multiprocessing or copy belongs to the user's line, not to the library's.
    return file.startswith(_INSTALLED) or not file.startswith(_STANDARD_LIBRARY)


@lru_cache(_FILES)
def is_inductors(file: str) -> bool:
    """Return whether a file holds code that Inductor has generated: it is in its cache."""
    chosen = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    folder = os.path.abspath(chosen) if chosen else f"{os.sep}torchinductor_"
    return folder in file


@lru_cache(_FILES)
def is_own(file: str) -> bool:
    """Return whether a file is the program's own, not Python's or an installed package's."""
    return is_users(file) and not (installed_part(file) or file.startswith(_SCRIPTS))
