"""What the environment lets NCCL do."""

from __future__ import annotations

import ctypes
import os


def algorithms() -> str | None:
    """``NCCL_ALGO`` as NCCL sees it: PyTorch sets it for C only, past ``os.environ``."""
    return _c_environment("NCCL_ALGO")


def nvls_is_excluded() -> bool:
    """Whether NCCL is kept from reducing inside the NVLink switch, where sums are in any order."""
    if _c_environment("NCCL_NVLS_ENABLE") == "0":
        return True
    names = (algorithms() or "").upper()
    return bool(names) and ("NVLS" in names) == names.startswith("^")


def _c_environment(name: str) -> str | None:
    if os.name != "posix":
        return os.environ.get(name)
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    value = getenv(name.encode())
    return value.decode() if value is not None else None
