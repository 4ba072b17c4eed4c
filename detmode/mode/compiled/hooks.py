"""The hook in Dynamo by which functions given to ``torch.compile`` are compiled for a mode.

Dynamo gives each graph to the backend that the user chose through one method. Around it a guard is
added, so that the code is used only under modes that list the same operators; and while a mode is
entered, the backend keeps the mode's operators whole.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch._higher_order_ops
import torch.compiler.config
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list, reset_code
from torch._dynamo import convert_frame
from torch._dynamo.guards import CheckFunctionManager, GuardBuilder, install_guard
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.source import AttrSource
from torch.utils._python_dispatch import BaseTorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from detmode.mode.compiled import timing
from detmode.mode.compiled.current import CAN_COMPILE, thread
from detmode.mode.compiled.lowering import keeping_whole
from detmode.mode.levels import innermost
from detmode.sites.graph_nodes import has_line, note_root
from detmode.sites.lines import WRAPPERS, modules_around
from detmode.table.markers import AHEAD_OF_TIME_PROGRAM
from detmode.table.rule_table import resolve

_PROGRAM: Any = resolve(AHEAD_OF_TIME_PROGRAM)

_HIGHER_ORDER = str(Path(torch._higher_order_ops.__file__).parent)
"""Here PyTorch calls its compiler by itself, only to trace: nothing is lost where that is all."""

_GUARDS_IGNORE_MODES = hasattr(
    torch._C._dynamo.guards, "set_is_in_mode_without_ignore_compile_internals"
)
"""False up to PyTorch 2.9, where guards made outside of a mode, as all are, do not hold inside."""

_HOOKED = "call_user_compiler"
_call_user_compiler: Any = OutputGraph.call_user_compiler


def install(dynamo: ModuleType) -> None:
    """Have Dynamo compile each thread's graphs for its innermost mode."""
    if OutputGraph.call_user_compiler is _call_user_compiler:
        _forget_deterministic_code()
        setattr(OutputGraph, _HOOKED, call_user_compiler)
        _note_programs()
        if not _GUARDS_IGNORE_MODES:
            setattr(convert_frame, CheckFunctionManager.__name__, _guards_inside)


def _forget_deterministic_code() -> None:
    """Drop code that was compiled under PyTorch's flag: no guard tells a mode from the flag."""
    is_on = torch.are_deterministic_algorithms_enabled()
    for reference in convert_frame.input_codes.seen:
        code = reference()
        if code is not None and any(
            type(guard).__name__ == "GLOBAL_STATE" and _flag_differs(guard) != is_on
            for entry in _debug_get_cache_entry_list(code)
            for guard in entry.guard_manager.root.get_leaf_guards()
        ):
            reset_code(code)


def _flag_differs(global_state: Any) -> bool:
    """Return whether a guard is for another value of PyTorch's flag than the present one."""
    changes = global_state.check_verbose(None).verbose_code_parts
    return any("deterministic_algorithms" in text.split() for text in changes)


def _note_programs() -> None:
    """Let modes know of each run of a program that was compiled ahead of time."""
    programs = list(vars(torch._C._aoti).values())
    with contextlib.suppress(ImportError):  # before PyTorch 2.10
        from torch._dynamo.aot_compile import AOTCompiledFunction

        programs.append(AOTCompiledFunction)
    for loaded in programs:
        for name in {"run", "boxed_run", "__call__"}.intersection(getattr(loaded, "__dict__", ())):
            setattr(loaded, name, _noted(getattr(loaded, name)))


def _noted(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def noted(program: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.mode is not None:
            leaves = tree_leaves((args, kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            _PROGRAM(tensors)
        return run(program, *args, **kwargs)

    return noted


def _guards_inside(*args: Any, **kwargs: Any) -> Any:
    """Make the guards of compiled code: they hold where tensors are dispatched to modes, or not."""
    in_dispatch_mode = thread.mode is not None and not thread.mode.intercepts_listed
    with BaseTorchDispatchMode() if in_dispatch_mode else contextlib.nullcontext():
        return CheckFunctionManager(*args, **kwargs)


def call_user_compiler(
    graph: OutputGraph, gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]
) -> Any:
    """Compile a graph for the mode that the thread has entered, if any."""
    module = graph.root_tx.import_source(__name__)
    source = AttrSource(AttrSource(module, "thread"), "key")
    install_guard(source.make_guard(GuardBuilder.EQUALS_MATCH))
    mode = thread.mode
    if mode is None:
        return _call_user_compiler(graph, gm, example_inputs)
    module_name = _module_of(graph)
    if module_name is not None:
        note_root(gm, module_name)
    needs_caller = module_name is not None or not all(map(has_line, gm.graph.nodes))
    compiled: Callable[..., Any] = gm.forward
    has_twins = True
    if mode.compiles and CAN_COMPILE:
        timing.say_what_may_vary(gm, mode.say_once)
        # Dynamo turns modes off while it compiles, but for DDP.
        with _disable_current_modes(), keeping_whole(mode, example_inputs) as lowered:
            compiled = _call_user_compiler(graph, gm, example_inputs)
        # What comes from a cache is not lowered.
        has_twins = not lowered or any(lowered)
    elif mode.compiles and not graph.root_tx.f_code.co_filename.startswith(_HIGHER_ORDER):
        mode.say_once(
            "torch.compile",
            "a function given to torch.compile runs operator by operator under DeterministicMode: "
            "compiled code needs PyTorch 2.9 or newer",
        )
    return functools.partial(_from_caller, compiled) if needs_caller and has_twins else compiled


def _module_of(graph: OutputGraph) -> str | None:
    """Return the local variable that is the module whose call is compiled, if it is one's."""
    frame = graph.root_tx
    if frame.f_code.co_filename == WRAPPERS and isinstance(
        frame.f_locals.get("fn"), torch.nn.Module
    ):
        return "fn"
    modules = modules_around(sys._getframe())
    if not modules:
        return None
    names = (name for name, value in frame.f_locals.items() if value is modules[-1])
    return next(names, "self")


def _from_caller(compiled: Callable[..., Any], *args: Any) -> Any:
    """Call a graph that does not know the place of its call."""
    level = innermost()
    if level is None:
        return compiled(*args)
    return level.memory.call_from(sys._getframe(), level.counter.paths, compiled, *args)
