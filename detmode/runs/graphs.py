"""The graphs that Inductor has compiled, as recordings and probes see them when they are called.

Inductor calls the operators that it does not generate itself through PyTorch's dispatcher, where a
mode receives them. The graph around them is observed by one hook, on the method by which it is
called, forward and backward; so the program runs the code that it would run by itself.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext

from detmode.sites.call_sites import CallSites
from detmode.sites.files import is_users
from detmode.sites.observers import observer
from detmode.table.call_site import CallSite

GRAPH = "compiled::"
"""What the name of a graph begins with, where that of an operator has its namespace."""

_TORCH = os.path.dirname(torch.__file__)
_CHECKING = os.path.join(_TORCH, "_functorch", "_aot_autograd", "runtime_wrappers.py")
_TIMING = os.path.join(_TORCH, "_inductor", "runtime", "")
_COMPILED = "__compiled_fn"
"""What Dynamo calls a graph in the code that it makes of the user's function."""
_ALLOCATION = "empty_strided"
_VIEW = "reinterpret_tensor"
_ASSERTION = "assert_"
_CODES = 1 << 8
_count_modes = torch._C._len_torch_dispatch_stack


@dataclass(frozen=True)
class Graph:
    """A graph that is being called.

    Args:
        name: ``"compiled::Net.forward[backward]"``: the user's function, and the direction.
        place: where the function begins; of a backward, that of its forward.
        mutated: the positions of the inputs that it writes.
        code: the code that Inductor has generated.
    """

    name: str
    place: CallSite
    mutated: tuple[int, ...]
    code: str

    def undefined_outputs(self, outputs: Any) -> list[Tensor]:
        """Return the outputs that nothing has written: the function returns an ``empty()``."""
        found = [outputs[position] for position in _unwritten(self.code)[1]]
        return [each for each in found if isinstance(each, Tensor)]

    def undefined_buffers(self) -> list[Tensor]:
        """Return what nothing has written yet of the buffers that the current call uses."""
        frame = _generated(sys._getframe(1))
        names = _unwritten(self.code)[0].get(frame.f_lineno, ()) if frame is not None else ()
        found = [frame.f_locals.get(name) for name in names] if frame is not None else []
        return [each for each in found if isinstance(each, Tensor)]


class _Running(threading.local):
    """The graph that the thread is calling.

    Attributes:
        graph: ``None`` outside of compiled code, and where nobody observes it.
    """

    graph: Graph | None = None


running = _Running()


def watch() -> None:
    """Show each graph to the innermost observer around its call."""
    from torch._inductor.output_code import CompiledFxGraph

    call: Any = CompiledFxGraph.__call__
    if hasattr(call, "__wrapped__"):
        return

    @functools.wraps(call)
    def observed(compiled: Any, inputs: Any) -> Any:
        seen_by = observer() if _count_modes() else None
        if seen_by is None:
            return call(compiled, inputs)
        return seen_by.observe_graph(compiled, inputs, functools.partial(call, compiled))

    setattr(CompiledFxGraph, "__call__", observed)  # noqa: B010  # its type is fixed


def graph_of(compiled: Any, places: CallSites, functions: dict[str, str]) -> Graph:
    """Return what is known of a graph that is about to be called.

    Args:
        compiled: as Inductor has made it.
        places: finds the place of the forward, for a backward.
        functions: the names of the functions, by their places.
    """
    options = compiled.fx_kwargs
    if options.get("is_backward"):
        place, direction = places.of_call(()), "backward"
        function = functions.get(place.site.text, "<unknown>")
    else:
        frame, direction = _function(), "forward"
        place = places.of_function(frame, makes_node=not options.get("is_inference"))
        function = functions[place.site.text] = _name_of(frame)
    mutated = tuple(compiled.mutated_input_idxs)
    return Graph(f"{GRAPH}{function}[{direction}]", place, mutated, compiled.source_code)


def _function() -> FrameType | None:
    """Return the frame of the function whose graph is being called, as Dynamo has rewritten it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _calls_graph(frame.f_code):
        frame = frame.f_back
    return frame


def _calls_graph(code: CodeType) -> bool:
    return any(name.startswith(_COMPILED) for name in code.co_names)


def _name_of(frame: FrameType | None) -> str:
    if frame is None:
        return "<unknown>"
    # A module of PyTorch's is called by a function of Dynamo's.
    module = frame.f_locals.get("fn")
    if isinstance(module, torch.nn.Module):
        return type(module).__name__
    name: str = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
    return name.rpartition("<locals>.")[2]


def is_compilers_own(func: Any) -> bool:
    """Return whether the compiler makes the call being dispatched for itself.

    It makes some while it compiles a backward that runs for the first time, where it times kernels,
    and where it checks the results of custom operators, each only once.
    """
    if TracingContext.try_get() is not None:
        return True
    if running.graph is None and func is not torch.ops.aten.detach.default:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        file = frame.f_code.co_filename
        if file.startswith(_TIMING):
            return True
        if file == _CHECKING and frame.f_locals.get("func", func) is not func:
            return True
        frame = frame.f_back
    return False


def _generated(frame: FrameType | None) -> FrameType | None:
    """Return the nearest frame of a graph's code."""
    while frame is not None and not (
        frame.f_code.co_name == "call" and is_users(frame.f_code.co_filename)
    ):
        frame = frame.f_back
    return frame


@functools.lru_cache(_CODES)
def _unwritten(code: str) -> tuple[dict[int, list[str]], list[int]]:
    """Return the buffers of a graph's code that are used before anything is written to them.

    Returns:
        For each line the names of those that it uses, and the positions of those that are outputs.
    """
    lines: dict[int, list[str]] = {}
    outputs: list[int] = []
    try:
        tree = ast.parse(code)
    except SyntaxError:  # it is C++
        return lines, outputs
    fresh: set[str] = set()
    for statement in _statements(tree):
        value = getattr(statement, "value", None)
        called = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
        used = fresh & _names(statement)
        if isinstance(statement, ast.Return):
            results = value.elts if isinstance(value, ast.Tuple) else []
            outputs += [place for place, each in enumerate(results) if fresh & _names(each)]
        elif isinstance(statement, ast.Assign) and (
            called.startswith(_ALLOCATION)
            or (used and (isinstance(value, ast.Name) or called == _VIEW))
        ):
            fresh.update(each.id for each in statement.targets if isinstance(each, ast.Name))
        elif used and not called.startswith(_ASSERTION):
            lines[statement.lineno] = sorted(used)
            fresh -= used
    return lines, outputs


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of the function that calls a graph, those in blocks too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "call":
            blocks: list[ast.stmt] = list(reversed(node.body))
            while blocks:
                statement = blocks.pop()
                if isinstance(statement, ast.With):
                    blocks += reversed(statement.body)
                else:
                    yield statement


def _names(node: ast.AST) -> set[str]:
    """Return the names that are read."""
    return {
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }
