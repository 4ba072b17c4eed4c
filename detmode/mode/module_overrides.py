"""Overrides of modules: ``overrides={"Net.head": "allow"}``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import torch

from detmode.table import names
from detmode.table.called_as import called_as, without_module
from detmode.table.outcome import ActionName


def is_module_path(key: str) -> bool:
    """Return whether a key of ``overrides`` is the path of a module, such as ``"Net.head"``.

    The dots of other keys follow ``::`` or a module of PyTorch's: ``"torch.histc"``.
    """
    first, *below = key.split(".")
    if "::" in key or not (first and below and all(below)):
        return False
    if called_as(key) is not None or without_module(key) != key:
        return False
    return not (first.islower() and _is_pytorchs(first))


def _is_pytorchs(name: str) -> bool:
    """Return whether a name is of PyTorch's: "aten.histc.default" and "histc.out" are no paths."""
    return bool(
        hasattr(torch, name) or names.registered(name) or names.overloads_of(f"aten::{name}")
    )


def by_precision(overrides: Mapping[str, ActionName]) -> dict[str, ActionName]:
    """Return the overrides of modules: longer paths first, and names before globs."""
    paths = [key for key in overrides if is_module_path(key)]
    paths.sort(key=lambda path: (-path.count("."), sum(map(path.count, "*?["))))
    return {path: overrides[path] for path in paths}


def action_in(module: str | None, overrides: Mapping[str, ActionName]) -> ActionName | None:
    """Return the action that the first override has that covers a module; ``None`` without one.

    >>> action_in("Net.head.0", {"Net.head": "allow"})
    'allow'
    """
    paths = overrides if module is not None else ()
    return next((overrides[path] for path in paths if covers(path, str(module))), None)


def covers(path: str, module: str) -> bool:
    """Return whether a path, or a glob of its names, means a module or one that contains it."""
    wanted, at = path.split("."), module.split(".")
    return len(wanted) <= len(at) and all(map(fnmatchcase, at, wanted))


def unmatched(overrides: Iterable[str], modules: Iterable[str]) -> list[str]:
    """Return the overrides that cover none of the modules."""
    modules = list(modules)
    return [path for path in overrides if not any(covers(path, module) for module in modules)]
