"""The user's lines behind the nodes of the graphs that PyTorch's compiler makes."""

from __future__ import annotations

import operator
import re
import sys
from functools import lru_cache
from types import FrameType
from typing import Any

import torch

from detmode.sites.module_path import ModulePaths
from detmode.sites.source_lines import place_in
from detmode.sites.user_files import is_own, is_users
from detmode.table.call_site import CallSite, Site
from detmode.table.names import overload_name
from detmode.table.variants import variant_of

_FRAME = re.compile(r'File "(.*?)", line (\d+)')
_GENERATED = "<eval_with_key>"
"""The beginning of the names of generated code's files."""

INTERPRETER = torch.fx.Interpreter.run_node.__code__
"""The code that runs a node of a graph for which no code is generated."""

_REGISTERED = re.compile(r"\._modules\['(.*?)'\]")
_ROOT = "detmode"
_NO_LINE = "<"
_SITES = 1 << 14


def place_of(
    frame: FrameType, caller: CallSite | None, paths: ModulePaths
) -> tuple[CallSite | None, str]:
    """Return the user's place behind a node of a graph that runs, and the overload there.

    Returns:
        ``None`` and ``""`` where they are not known.
    """
    node = node_at(frame)
    if node is None:
        return None, ""
    place, outer, overload = site_from(text_of(node), caller)
    if place.site.file is None:
        return None, overload
    paths.own_lines.setdefault(place.site.text, outer)
    return place, overload


def runs_graph(frame: FrameType) -> bool:
    """Return whether a frame is of a graph's generated code, or runs a node for its interpreter."""
    code = frame.f_code
    return code is INTERPRETER or code.co_filename.startswith(_GENERATED)


def node_at(frame: FrameType) -> torch.fx.Node | None:
    """Return the node that a graph's frame runs, if PyTorch's compiler has made the graph."""
    if frame.f_code is INTERPRETER:
        node: torch.fx.Node = frame.f_locals["n"]
    else:
        graph = frame.f_locals.get("self")
        if not isinstance(graph, torch.fx.GraphModule) or graph._lineno_map is None:
            return None
        position = graph._lineno_map.get(frame.f_lineno - frame.f_code.co_firstlineno)
        nodes = list(graph.graph.nodes)
        if position is None or position >= len(nodes):
            return None
        node = nodes[position]
    return node if is_compilers(node) else None


def is_compilers(node: torch.fx.Node) -> bool:
    """Return whether PyTorch's compiler has made a node."""
    return "stack_trace" in node.meta or _ROOT in _module_stack(node)


def note_root(graph: torch.fx.GraphModule, name: str) -> None:
    """Note in all nodes that a module calls the graph, so that paths begin at that module.

    What is noted there goes on to the graphs that are made of this one, backward graphs too. The
    name is of the local variable that is the module.
    """
    root = {_ROOT: (f"L['{name}']", "")}
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta["nn_module_stack"] = {**root, **(node.meta.get("nn_module_stack") or {})}


def has_line(node: torch.fx.Node) -> bool:
    """Return whether the user's line of a call is known; other nodes need none."""
    return node.op != "call_function" or not text_of(node).startswith(_NO_LINE)


def text_of(node: torch.fx.Node) -> str:
    """Return the line, the program's own line, the module and the overload of a node, as text."""
    site = outer = ""
    for file, line in reversed(_FRAME.findall(node.meta.get("stack_trace") or "")):
        if not site and is_users(file):
            site = place_in(file, line)
        if is_own(file):
            outer = place_in(file, line)
            break
    return "|".join((site or f"{_NO_LINE}{node.name}>", outer, _module(node), _name(node)))


def _module(node: torch.fx.Node) -> str:
    """Return the path of the module that makes a call, as eager code shows it.

    It begins with a dot if it continues the path of the module that calls the graph.
    """
    stack = _module_stack(node)
    root, _ = stack.pop(_ROOT, ("", ""))
    dot = "." if root else ""
    if not stack:
        return dot
    # PyTorch 2.9 writes model._modules['layer'] for model.layer.
    modules = [(_REGISTERED.sub(r".\1", path), made_of) for path, made_of in stack.values()]
    (outermost, made_of), path = modules[0], modules[-1][0]
    if root and outermost.startswith(root):
        return path.removeprefix(root) or dot
    name = getattr(made_of, "__name__", str(made_of).rpartition(".")[2])
    return dot + name + path.removeprefix(outermost)


def _module_stack(node: torch.fx.Node) -> dict[str, tuple[str, Any]]:
    return dict(node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {})


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
    written = source if isinstance(source, str) else getattr(source, "__name__", "")
    if source is operator.setitem or written.partition(".")[0].endswith("_"):
        base += "_"
    return f"{base}.{overload}"


@lru_cache(_SITES)
def site_from(text: str, caller: CallSite | None) -> tuple[CallSite, str | None, str]:
    """Return what :func:`text_of` wrote down: place, the program's own line, and overload."""
    line, outer, module, overload = text.split("|")
    if module.startswith("."):
        module = f"{(caller and caller.module) or ''}{module}".strip(".")
    if line.startswith(_NO_LINE) and caller is not None:
        # All of the graph's lines are PyTorch's own, as in a module of torch.nn.
        return CallSite(caller.site, module or None), outer or None, overload
    file, _, number = line.rpartition(":")
    site = Site(line, file, int(number), _python_module(file)) if file else Site(line)
    return CallSite(site, module or None), outer or None, overload


def _python_module(file: str) -> str:
    """Return the name of the Python module that a file holds, for the filters of warnings."""
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == file:
            return name
    return "<unknown>"
