"""The algorithms that the environment allows NCCL to use."""

from __future__ import annotations

import ctypes
import os

REDUCING = ("allreduce", "reducescatter", "reduce")
"""NCCL's reducing functions, as NCCL_ALGO names them; a name precedes those that it contains."""

EXCLUDING = "^NVLS,NVLSTree"
"""The value of NCCL_ALGO that keeps all of NCCL's functions from reducing inside the switch."""

_FUNCTIONS = {*REDUCING, "broadcast", "allgather"}
_ALGORITHMS = {"tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"}


def algorithms() -> str | None:
    """Return ``NCCL_ALGO`` as NCCL sees it: PyTorch sets it for C only, not in ``os.environ``."""
    return _c_environment("NCCL_ALGO")


def nvls_is_excluded(function: str | None = None) -> bool:
    """Return whether NCCL cannot reduce inside the NVLink switch, which adds in any order.

    Two algorithms reduce there: NVLS, and across nodes NVLSTree. NCCL compares whole names, so
    ``^NVLS``, which PyTorch sets, still allows NVLSTree. It is enough if all ranks are known to be
    on one node, because NCCL then never uses NVLSTree.

    Args:
        function: one of :data:`REDUCING`; all of them if not given.
    """
    if _c_environment("NCCL_NVLS_ENABLE") == "0":
        return True
    switched = ("nvls",) if _on_one_node() else ("nvls", "nvlstree")
    return excludes(*switched, functions=(function,) if function else REDUCING)


def excludes(*names: str, functions: tuple[str, ...] = REDUCING) -> bool:
    """Return whether ``NCCL_ALGO`` keeps functions from algorithms, both in lower case."""
    setting = algorithms() or ""
    return all(_possible(function, setting).isdisjoint(names) for function in functions)


def _possible(function: str, setting: str) -> set[str]:
    """Return the algorithms that a value of NCCL_ALGO allows; all if NCCL rejects the value.

    Since NCCL 2.24 a value is a list of algorithms, followed by lists for single functions, each
    after ``;``: ``ring,tree;allreduce:^nvls``. The last list for a function counts, ``^`` means all
    but the listed ones, names are whole and ignore case, and without a list everything is allowed.
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
    """Return whether the launcher, such as ``torchrun``, put all ranks on one node."""
    ranks = os.environ.get("WORLD_SIZE")
    return ranks is not None and ranks == os.environ.get("LOCAL_WORLD_SIZE")


def _c_environment(name: str) -> str | None:
    if os.name != "posix":
        return os.environ.get(name)
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    value = getenv(name.encode())
    return value.decode(errors="replace") if value is not None else None
