"""What the environment lets NCCL do."""

from __future__ import annotations

import ctypes
import os

REDUCING = ("allreduce", "reducescatter", "reduce")
"""NCCL's functions that reduce, as NCCL_ALGO names them; a name before those that it contains."""

EXCLUDING = "^NVLS,NVLSTree"
"""The value of NCCL_ALGO that keeps every function of NCCL from reducing inside the switch."""

_FUNCTIONS = {*REDUCING, "broadcast", "allgather"}
_ALGORITHMS = {"tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"}


def algorithms() -> str | None:
    """``NCCL_ALGO`` as NCCL sees it: PyTorch sets it for C only, past ``os.environ``."""
    return _c_environment("NCCL_ALGO")


def nvls_is_excluded(function: str | None = None) -> bool:
    """Whether NCCL is kept from reducing inside the NVLink switch, where sums are in any order.

    Two algorithms do so: NVLS, and across nodes NVLSTree. NCCL compares whole names, so that
    ``^NVLS``, which PyTorch sets, leaves NVLSTree: it is enough where all ranks are known to be on
    one node, as NCCL then never takes NVLSTree.

    Args:
        function: one of :data:`REDUCING`; all of them if not given.
    """
    if _c_environment("NCCL_NVLS_ENABLE") == "0":
        return True
    switched = {"nvls"} if _on_one_node() else {"nvls", "nvlstree"}
    functions = (function,) if function else REDUCING
    return all(switched.isdisjoint(_possible(each, algorithms() or "")) for each in functions)


def _possible(function: str, setting: str) -> set[str]:
    """The algorithms that a value of NCCL_ALGO leaves to a function; all where NCCL refuses it.

    Since NCCL 2.24 a value is a list of algorithms, then lists for single functions, each after
    ``;``: ``ring,tree;allreduce:^nvls``. The last list for a function counts, ``^`` means all but
    the listed, names are whole ones in any case, and without a list everything is possible.
    """
    possible = _ALGORITHMS
    for place, entry in enumerate(filter(None, setting.lower().split(";"))):
        prefix, _, names = entry.rpartition(":")
        listed = set(filter(None, names.removeprefix("^").split(",")))
        is_known = prefix in _FUNCTIONS or (place == 0 and ":" not in entry)
        if not is_known or not names or not listed <= _ALGORITHMS:
            return _ALGORITHMS
        if prefix in ("", function):
            possible = _ALGORITHMS - listed if names.startswith("^") else listed
    return possible


def _on_one_node() -> bool:
    """Whether the program's starter, such as ``torchrun``, says that no other node takes part."""
    ranks = os.environ.get("WORLD_SIZE")
    return ranks is not None and ranks == os.environ.get("LOCAL_WORLD_SIZE")


def _c_environment(name: str) -> str | None:
    if os.name != "posix":
        return os.environ.get(name)
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    value = getenv(name.encode())
    return value.decode(errors="replace") if value is not None else None
