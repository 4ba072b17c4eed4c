"""The hook in Dynamo by which graphs compiled under a mode keep the mode's operators whole.

Dynamo gives each graph to the backend that the user chose through one method. Around it, while a
mode is entered:

- a guard is added, so that the code is used only under modes that list the same operators;
- nothing decomposes listed operators, or the forwards of listed backward operators;
- Inductor lowers a twin in the place of each listed operator, after all its passes over the graph;
- nothing that Inductor times decides bits, no scan combines its parts in the order in which they
  finish, and no CUDA graph of the backend ``cudagraphs`` records a call that the mode decides on;
- the caches of other modes, lines and sizes are not used.

The options that the user gave to ``torch.compile`` hold, but for those by which timing would decide
bits.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import operator
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.compiler.config
from torch._dynamo import convert_frame
from torch._dynamo.guards import CheckFunctionManager, GuardBuilder, install_guard
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.source import AttrSource
from torch._functorch._aot_autograd.schemas import AOTConfig
from torch.utils._python_dispatch import BaseTorchDispatchMode
from torch.utils._pytree import tree_leaves

import detmode
from detmode.compiled import timing
from detmode.cuda.undo import Undo
from detmode.mode.deterministic_mode import DeterministicMode
from detmode.sites.graphs import note_root, text_of
from detmode.sites.lines import current_module, surroundings
from detmode.table.markers import AHEAD_OF_TIME_PROGRAM, FLEX_ATTENTION_BACKWARD
from detmode.table.rule import Allow
from detmode.table.rule_table import resolve
from detmode.table.twins import SITE, twin_of
from detmode.table.variants import variant_of

_AT_ONCE = "force_non_lazy_backward_lowering"
CAN_COMPILE = hasattr(AOTConfig, _AT_ONCE)
"""False for PyTorch 2.8, which compiles a backward when it first runs, outside of the hook."""

_PYTHON_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
"""The keys at which PyTorch decomposes operators in Python while it traces."""

_INTO_LISTED = frozenset({"aten::col2im", "aten::im2col", "aten::index_fill"})
"""Operators that do not vary and that Inductor decomposes into listed ones."""


_MODE = "detmode.compiled"


_PROGRAM: Any = resolve(AHEAD_OF_TIME_PROGRAM)
_ATOMICS: Any = resolve(FLEX_ATTENTION_BACKWARD)


class _Thread:
    """The purpose for which the current thread compiles graphs.

    PyTorch carries it to the autograd threads of the thread's backward, where activation
    checkpointing calls compiled functions again.
    """

    @property
    def mode(self) -> DeterministicMode | None:
        """The innermost mode."""
        return torch._C._get_obj_in_tls(_MODE) if torch._C._is_key_in_tls(_MODE) else None

    @property
    def key(self) -> str | None:
        """Dynamo guards on it."""
        mode = self.mode
        return None if mode is None else mode.compiles_for


thread = _Thread()

_GUARDS_IGNORE_MODES = hasattr(
    torch._C._dynamo.guards, "set_is_in_mode_without_ignore_compile_internals"
)
"""False up to PyTorch 2.9, where guards made outside of a mode, as all are, do not hold inside."""

_HOOKED = "call_user_compiler"
_call_user_compiler: Any = OutputGraph.call_user_compiler


def enter(mode: DeterministicMode, undo: Undo) -> None:
    """Compile the graphs of this thread for ``mode`` until ``undo`` runs."""
    if OutputGraph.call_user_compiler is _call_user_compiler:
        if torch.are_deterministic_algorithms_enabled():
            # What was compiled under PyTorch's own flag has no guard that tells it from this.
            torch.compiler.reset()
        setattr(OutputGraph, _HOOKED, call_user_compiler)
        _note_programs()
        if not _GUARDS_IGNORE_MODES:
            setattr(convert_frame, CheckFunctionManager.__name__, _guards_inside)
    undo.note(functools.partial(torch._C._stash_obj_in_tls, _MODE, thread.mode))
    mode.compiles_for = key_of(mode)
    torch._C._stash_obj_in_tls(_MODE, mode)


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
    with contextlib.nullcontext() if thread.key is None else BaseTorchDispatchMode():
        return CheckFunctionManager(*args, **kwargs)


def key_of(mode: DeterministicMode) -> str:
    """Return what decides which operators stay whole."""
    if not (mode.compiles and CAN_COMPILE):
        return "operator by operator"
    return f"{detmode.__version__} {mode._table.digest} {mode._overrides} {mode._simulate}"


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
    modules = surroundings()[1]
    if modules:
        names = (name for name, value in graph.root_tx.f_locals.items() if value is modules[-1])
        note_root(gm, next(names, "self"))
    compiled: Callable[..., Any] = gm.forward
    has_twins = True
    if mode.compiles and CAN_COMPILE:
        with _whole(mode, example_inputs) as lowered:
            compiled = _call_user_compiler(graph, gm, example_inputs)
        # What comes from a cache is not lowered.
        has_twins = not lowered or any(lowered)
    elif mode.compiles:
        mode.say_once(
            "torch.compile",
            "a function given to torch.compile runs operator by operator under DeterministicMode: "
            "compiled code needs PyTorch 2.9 or newer",
        )
    return functools.partial(_in_module, compiled) if modules and has_twins else compiled


def _in_module(compiled: Callable[..., Any], *args: Any) -> Any:
    """Call a graph of a module; several modules of one class share the graph."""
    mode = thread.mode
    if mode is None:
        return compiled(*args)
    return mode._memory.call_in(current_module(mode.paths)[1], compiled, *args)


@contextlib.contextmanager
def _whole(mode: DeterministicMode, example_inputs: list[torch.Tensor]) -> Iterator[list[bool]]:
    """Keep what ``mode`` lists whole in what is compiled inside the block.

    Yields:
        for each graph that Inductor lowers in the block, true if it has twins.
    """
    from torch._dynamo.backends import cudagraphs
    from torch._inductor import compile_fx, ir, lowering
    from torch._inductor.codecache import FxGraphHashDetails
    from torch._inductor.graph import GraphLowering

    # For dynamic shapes code is cut into parts by the sizes that came first.
    sizes = [getattr(each, "shape", each) for each in example_inputs]
    tag = hashlib.sha256(f"{thread.key}\n{sizes}".encode()).hexdigest()
    config: Any = torch.compiler.config
    lowered: list[bool] = []
    with (
        mock.patch.object(FxGraphHashDetails, "__init__", _with_lines(FxGraphHashDetails.__init__)),
        config.patch(cache_key_tag=config.cache_key_tag + tag),
        timing.decides_nothing(mode.say_once),
        # A backward that is compiled when it first runs is compiled outside of this block.
        mock.patch.object(AOTConfig, _AT_ONCE, property(lambda _: True, lambda *_: None)),
        mock.patch.object(compile_fx, "select_decomp_table", _decompositions),
        # Until 2.11 lowering refuses what the whole table decomposes.
        mock.patch.object(lowering, "decompositions", {}),
        mock.patch.object(GraphLowering, "__init__", _put_twins(GraphLowering.__init__, lowered)),
        mock.patch.object(ir, "SplitScan", _unsplit(ir.Scan)),
        mock.patch.object(cudagraphs, "check_for_skip", _skips(cudagraphs.check_for_skip)),
        _without_python_kernels(mode),
    ):
        yield lowered


def _with_lines(init: Callable[..., None]) -> Callable[..., None]:
    """Have the caches tell apart graphs of other lines, which the code has."""

    @functools.wraps(init)
    def with_lines(details: Any, gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> None:
        init(details, gm, *args, **kwargs)
        details.detmode = [text_of(node) for node in gm.graph.nodes]

    return with_lines


def _put_twins(init: Callable[..., None], lowered: list[bool]) -> Callable[..., None]:
    """Lower graphs with a twin in the place of each call that the mode may decide on.

    Whether there are any is added to ``lowered``.
    """

    @functools.wraps(init)
    def with_twins(lowering: Any, gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> None:
        assert thread.mode is not None
        for node in list(gm.graph.nodes):
            if node.target is torch.ops.higher_order.flex_attention_backward:
                _mark_atomics(gm, node)
        met = [node for node in gm.graph.nodes if _may_be_met(thread.mode, node)]
        for node in met:
            node.kwargs = {**node.kwargs, SITE: text_of(node)}
            if variant_of(node.target) == "inplace":
                node.replace_all_uses_with(node.args[0])
            node.target = twin_of(node.target)
        lowered.append(bool(met))
        init(lowering, gm, *args, **kwargs)

    return with_twins


def _mark_atomics(gm: torch.fx.GraphModule, backward: torch.fx.Node) -> None:
    """Mark a backward of ``flex_attention`` that adds to captured tensors by atomics.

    Its template gathers the gradients of queries, keys and values in a fixed order.
    """
    bodies = [
        getattr(gm, str(each.target)) for each in backward.all_input_nodes if each.op == "get_attr"
    ]
    called = {str(node.target) for body in bodies for node in body.graph.nodes}
    if "flex_lib.zeros_and_scatter.default" in called:
        with gm.graph.inserting_after(backward):
            queries = gm.graph.call_function(operator.getitem, (backward, 0))
        queries.meta = {**backward.meta, "val": backward.meta["val"][0]}
        with gm.graph.inserting_after(queries):
            node = gm.graph.call_function(_ATOMICS, (queries,))
        node.meta = {**backward.meta, "val": None}


def _unsplit(scan: type) -> type:
    """Return what makes plain scans in the place of those that tiles join as they finish.

    Until PyTorch 2.13 Inductor splits a long ``associative_scan`` so under the flag too.
    """

    class Unsplit:
        def __new__(cls, **kwargs: Any) -> Any:
            return scan(**kwargs)

    return Unsplit


def _skips(check: Callable[..., str | None]) -> Callable[..., str | None]:
    """Return the check by which the backend ``cudagraphs`` runs a graph without recording it."""

    @functools.wraps(check)
    def with_listed(gm: torch.fx.GraphModule, *args: Any) -> str | None:
        assert thread.mode is not None
        for node in gm.graph.nodes:
            if _may_be_met(thread.mode, node):
                return f"DeterministicMode decides on each call of {node.target}"
        return check(gm, *args)

    return with_listed


def _may_be_met(mode: DeterministicMode, node: torch.fx.Node) -> bool:
    """Return whether a row or an override of the mode may hold for a call of the graph."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    overload = mode.overload_info(node.target)
    if overload is None or overload.override is not None:
        return overload is not None
    values = tree_leaves(
        [node.meta.get("val"), [each.meta.get("val") for each in node.all_input_nodes]]
    )
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    devices = {tensor.device.type for tensor in tensors}
    if mode._simulate:
        devices.add(mode._simulate)
    is_dense = all(tensor.layout is torch.strided for tensor in tensors)
    return any(
        (not row.rule.when.devices or devices.intersection(row.rule.when.devices))
        and not (row.rule.when.needs_sparse and is_dense)
        and not isinstance(row.rule.action, Allow)
        for row in overload.rows
    )


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Return Inductor's decompositions but those of operators that stay whole."""
    from torch._inductor.decomposition import select_decomp_table

    mode = thread.mode
    assert mode is not None
    return {
        func: decomposition
        for func, decomposition in select_decomp_table().items()
        if not (isinstance(func, torch._ops.OpOverload) and _stays_whole(mode, func))
    }


def _stays_whole(mode: DeterministicMode, func: torch._ops.OpOverload) -> bool:
    """Return whether an operator is listed, or the forward of a listed one."""
    overload = mode.overload_info(func)
    return func._schema.name in _INTO_LISTED or (
        overload is not None
        and bool(overload.rows or overload.override or mode._table.is_forward(func))
    )


@contextlib.contextmanager
def _without_python_kernels(mode: DeterministicMode) -> Iterator[None]:
    """Set aside what decomposes listed operators, and their forwards, above autograd.

    What decomposes interpolation reads by index, so that the backward would add by index, which
    eager code never does.
    """
    removed = []
    try:
        for func in _python_kernels():
            if "upsample" in func._opname or _stays_whole(mode, func):
                for key in func.py_kernels.keys() & set(_PYTHON_KEYS):
                    removed.append((func, key, func.py_kernels.pop(key)))
                func._dispatch_cache.clear()
        yield
    finally:
        for func, key, kernel in removed:
            func.py_kernels[key] = kernel
            func._dispatch_cache.clear()


@functools.lru_cache
def _python_kernels() -> tuple[torch._ops.OpOverload, ...]:
    """Return the overloads of ATen that have a kernel in Python above autograd."""
    import torch._decomp.decompositions

    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)]
    overloads = [
        getattr(packet, name)
        for packet in packets
        if isinstance(packet, torch._ops.OpOverloadPacket)
        for name in packet.overloads()
    ]
    return tuple(func for func in overloads if func.py_kernels.keys() & set(_PYTHON_KEYS))
