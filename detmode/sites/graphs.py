"""The user's lines behind the nodes of the graphs that PyTorch's compiler makes."""

from __future__ import annotations

import operator
import re
import sys
from functools import lru_cache

import torch

from detmode.sites.lines import is_own, is_users
from detmode.table.call_site import CallSite, Site
from detmode.table.names import overload_name
from detmode.table.variants import variant_of

_FRAME = re.compile(r'File "(.*?)", line (\d+)')
_SITES = 1 << 14


def text_of(node: torch.fx.Node) -> str:
    """Return the line, the program's own line and the module of a node, as one text."""
    site = outer = ""
    for file, line in reversed(_FRAME.findall(node.meta.get("stack_trace") or "")):
        if not site and is_users(file):
            site = f"{file}:{line}"
        if is_own(file):
            outer = f"{file}:{line}"
            break
    modules = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    path = [path for path, _ in modules.values()]
    return "|".join((site or f"<{node.name}>", outer, path[-1] if path else "", _name(node)))


def _name(node: torch.fx.Node) -> str:
    """Return the overload that eager code calls: graphs have functional variants of in-place calls.

    Inductor makes some of those in-place again, whatever the user wrote.
    """
    if not isinstance(node.target, torch._ops.OpOverload):
        return ""
    base, _, overload = overload_name(node.target).partition(".")
    if variant_of(node.target) == "inplace":
        base = base.removesuffix("_")
    source = (node.meta.get("source_fn_stack") or [("", "")])[-1][1]
    if source is operator.setitem or (isinstance(source, str) and source.endswith("_")):
        base += "_"
    return f"{base}.{overload}"


@lru_cache(_SITES)
def site_from(text: str) -> tuple[CallSite, str | None, str]:
    """Return what :func:`text_of` wrote down: place, the program's own line, and overload."""
    line, outer, module, overload = text.split("|")
    file, _, number = line.rpartition(":")
    site = Site(line, file, int(number), _python_module(file)) if file else Site(line)
    return CallSite(site, module or None), outer or None, overload


def _python_module(file: str) -> str:
    """Return the name of the Python module that a file holds, for the filters of warnings."""
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == file:
            return name
    return "<unknown>"
