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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from traceback import walk_stack
from types import FrameType
from typing import Any, NamedTuple

import torch
import wrapt
from torch import Tensor
from torch._guards import TracingContext

from detmode.process.patched import Patched
from detmode.sites.forward_memory import ForwardMemory
from detmode.sites.module_path import ModulePaths
from detmode.sites.observers import observer
from detmode.sites.user_files import is_inductors, is_users
from detmode.table.call_site import CallSite

GRAPH = "compiled::"
"""The beginning of a graph's name, where that of an operator has its namespace."""

_TORCH = os.path.dirname(torch.__file__)
_CHECKING = os.path.join(_TORCH, "_functorch", "_aot_autograd", "runtime_wrappers.py")
_TIMING = os.path.join(_TORCH, "_inductor", "runtime", "")
_COMPILED = "__compiled_fn"
"""Dynamo's name of a graph in the code that it makes of the user's function."""
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
        place: the function's first line; of a backward, that of its forward.
        mutated: the positions of the inputs that it writes.
        code: the code that Inductor has generated.
    """

    name: str
    place: CallSite
    mutated: tuple[int, ...]
    code: str

    def undefined_outputs(self, outputs: Any) -> list[Tensor]:
        """Return the outputs that nothing has written: the function returns an ``empty()``."""
        values = [outputs[position] for position in _unwritten(self.code).outputs]
        return [value for value in values if isinstance(value, Tensor)]

    def undefined_buffers(self, written: list[Tensor]) -> list[Tensor]:
        """Return what nothing has written yet of the buffers that the current call uses.

        Args:
            written: the inputs that the call writes; of code in C++ nothing more is known.
        """
        frame, unwritten = _generated(sys._getframe(1)), _unwritten(self.code)
        if frame is None or not unwritten.is_known:
            return written
        values = [frame.f_locals.get(name) for name in unwritten.lines.get(frame.f_lineno, ())]
        return [value for value in values if isinstance(value, Tensor)]


class _Unwritten(NamedTuple):
    """The buffers of a graph's code that are used before anything is written to them.

    Args:
        lines: for each line, the names of those that it uses.
        outputs: the positions of those that are outputs.
        is_known: false for code in C++.
    """

    lines: dict[int, list[str]]
    outputs: list[int]
    is_known: bool


class _Running(threading.local):
    """The graph that the thread is calling.

    Attributes:
        graph: ``None`` outside of compiled code, and where nobody observes it.
    """

    graph: Graph | None = None


running = _Running()


def _shown(call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(call)
    def observed(compiled: Any, inputs: Any) -> Any:
        seen_by = observer() if _count_modes() else None
        if seen_by is None:
            return call(compiled, inputs)
        return seen_by.observe_graph(compiled, inputs, functools.partial(call, compiled))

    return observed


_OUTPUT_CODE = "torch._inductor.output_code"
CALL: Patched = Patched(
    lambda: getattr(sys.modules.get(_OUTPUT_CODE), "CompiledFxGraph", None), "__call__", _shown
)
"""The call of a graph, which shows it to the innermost observer."""
# Importing it takes as long as all else of a short run.
wrapt.register_post_import_hook(lambda _: CALL.look_again(), _OUTPUT_CODE)


def graph_of(
    compiled: Any, memory: ForwardMemory, paths: ModulePaths, functions: dict[str, str]
) -> Graph:
    """Return what is known of a graph that is about to be called.

    Args:
        compiled: as Inductor has made it.
        memory: finds the place of the forward, for a backward.
        paths: those of the modules.
        functions: the names of the functions, by their places.
    """
    options = compiled.fx_kwargs
    if options.get("is_backward"):
        place, direction = memory.place_of_call(paths, ()), "backward"
        function = functions.get(place.site.text, "<unknown>")
    else:
        frame, direction = _function(), "forward"
        makes_node = not options.get("is_inference")
        place = memory.place_of_function(paths, frame, makes_node=makes_node)
        function = functions[place.site.text] = _name_of(frame)
    mutated = tuple(compiled.mutated_input_idxs)
    return Graph(f"{GRAPH}{function}[{direction}]", place, mutated, compiled.source_code or "")


def _function() -> FrameType | None:
    """Return the frame of the function whose graph is being called, as Dynamo has rewritten it."""
    for frame, _ in walk_stack(sys._getframe(1)):
        if any(name.startswith(_COMPILED) for name in frame.f_code.co_names):
            return frame
    return None


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
    and where it checks the results of custom operators, each only once. Code in C++ calls ATen
    below the dispatcher, which then shows no more than parts of some operators.
    """
    if TracingContext.try_get() is not None:
        return True
    graph = running.graph
    if graph is None and func is not torch.ops.aten.detach.default:
        return False
    if graph is not None and func.namespace == "aten" and not _unwritten(graph.code).is_known:
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file) or is_inductors(file):
            break
        if file.startswith(_TIMING):
            return True
        if file == _CHECKING and frame.f_locals.get("func", func) is not func:
            return True
        frame = frame.f_back
    return False


def _generated(frame: FrameType) -> FrameType | None:
    """Return the nearest frame of a graph's code."""
    for outer, _ in walk_stack(frame):
        if outer.f_code.co_name == "call" and is_inductors(outer.f_code.co_filename):
            return outer
    return None


@functools.lru_cache(_CODES)
def _unwritten(code: str) -> _Unwritten:
    lines: dict[int, list[str]] = {}
    outputs: list[int] = []
    fresh: set[str] = set()
    try:
        statements = list(_statements(ast.parse(code)))
    except SyntaxError:
        statements = []
    for statement in statements:
        value = getattr(statement, "value", None)
        called = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
        used = fresh & _names(statement)
        if isinstance(statement, ast.Return):
            results = value.elts if isinstance(value, ast.Tuple) else []
            outputs += [place for place, target in enumerate(results) if fresh & _names(target)]
        elif isinstance(statement, ast.Assign) and (
            called.startswith(_ALLOCATION)
            or (used and (isinstance(value, ast.Name) or called == _VIEW))
        ):
            fresh.update(target.id for target in statement.targets if isinstance(target, ast.Name))
        elif used and not called.startswith(_ASSERTION):
            lines[statement.lineno] = sorted(used)
            fresh -= used
    return _Unwritten(lines, outputs, bool(statements))


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
        name.id
        for name in ast.walk(node)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)
    }
