"""The hook in Dynamo by which graphs compiled under a mode keep the mode's operators whole."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.compiler.config
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.source import AttrSource

from detmode.cuda.undo import Undo
from detmode.mode.deterministic_mode import DeterministicMode
from detmode.sites.graphs import text_of
from detmode.sites.lines import surroundings
from detmode.table.twins import SITE, twin_of
from detmode.table.variants import variant_of

_PYTHON_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
"""The keys at which PyTorch decomposes operators in Python while it traces."""


class _Thread(threading.local):
    """What graphs of this thread are compiled for; Dynamo guards on it."""

    key: str | None = None
    mode: DeterministicMode | None = None
    root: str | None = None


thread = _Thread()

_call_user_compiler = OutputGraph.call_user_compiler


def enter(mode: DeterministicMode, undo: Undo) -> None:
    """Compile the graphs of this thread for ``mode`` until ``undo`` runs."""
    OutputGraph.call_user_compiler = call_user_compiler  # type: ignore[method-assign]  # the hook
    undo.note(functools.partial(_restore, thread.mode, thread.key))
    thread.mode, thread.key = mode, key_of(mode)


def _restore(mode: DeterministicMode | None, key: str | None) -> None:
    thread.mode, thread.key = mode, key


def key_of(mode: DeterministicMode) -> str:
    """Return a digest of what decides which operators stay whole."""
    parts = (
        sorted({f"{row.rule.op} {row.rule.when}" for row in mode._table}),
        mode._overrides,
        mode._simulate,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def call_user_compiler(
    graph: OutputGraph, gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]
) -> Any:
    """Compile a graph of Dynamo's, for the mode that the thread has entered, if any."""
    module = graph.root_tx.import_source(__name__)
    source = AttrSource(AttrSource(module, "thread"), "key")
    install_guard(source.make_guard(GuardBuilder.EQUALS_MATCH))
    if thread.mode is None:
        return _call_user_compiler(graph, gm, example_inputs)
    modules = surroundings()[1]
    paths = thread.mode._counter.paths
    thread.root = paths.of(modules, recomputed=False) if modules else None
    with _whole(thread.mode, gm):
        return _call_user_compiler(graph, gm, example_inputs)


@contextlib.contextmanager
def _whole(mode: DeterministicMode, gm: torch.fx.GraphModule) -> Iterator[None]:
    """Keep what ``mode`` lists whole in what is compiled inside the block."""
    import torch._functorch.config
    import torch._inductor.config
    from torch._inductor import compile_fx
    from torch._inductor.graph import GraphLowering

    lines = "\n".join(text_of(node, thread.root) for node in gm.graph.nodes)
    tag = hashlib.sha256(f"{thread.key}\n{lines}".encode()).hexdigest()
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            torch.compiler.config.patch(cache_key_tag=torch.compiler.config.cache_key_tag + tag)
        )
        if hasattr(torch._inductor.config, "deterministic"):
            stack.enter_context(torch._inductor.config.patch(deterministic=True))
        if hasattr(torch._functorch.config, "force_non_lazy_backward_lowering"):
            # A backward that is compiled when it first runs is compiled outside of this block.
            stack.enter_context(
                torch._functorch.config.patch(force_non_lazy_backward_lowering=True)
            )
        stack.enter_context(mock.patch.object(compile_fx, "select_decomp_table", _decompositions))
        stack.enter_context(
            mock.patch.object(GraphLowering, "__init__", _put_twins(GraphLowering.__init__))
        )
        stack.enter_context(_without_python_kernels(mode))
        yield


def _put_twins(init: Callable[..., None]) -> Callable[..., None]:
    """Lower graphs with a twin in the place of each call that the mode may decide on."""

    @functools.wraps(init)
    def with_twins(lowering: Any, gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> None:
        assert thread.mode is not None
        for node in gm.graph.nodes:
            if node.op == "call_function" and _varies(thread.mode, node):
                node.kwargs = {**node.kwargs, SITE: text_of(node, thread.root)}
                if variant_of(node.target) == "inplace":
                    node.replace_all_uses_with(node.args[0])
                node.target = twin_of(node.target)
        init(lowering, gm, *args, **kwargs)

    return with_twins


def _varies(mode: DeterministicMode, node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and mode.lists(node.target)


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Return Inductor's decompositions but those of operators that the mode lists."""
    from torch._inductor.decomposition import select_decomp_table

    mode = thread.mode
    assert mode is not None
    return {
        func: decomposition
        for func, decomposition in select_decomp_table().items()
        if not (isinstance(func, torch._ops.OpOverload) and mode.lists(func, forward=True))
    }


@contextlib.contextmanager
def _without_python_kernels(mode: DeterministicMode) -> Iterator[None]:
    """Set aside what decomposes listed operators, and their forwards, above autograd.

    What decomposes interpolation reads by index, so that the backward would add by index, which
    eager code never does.
    """
    removed = []
    try:
        for func in _python_kernels():
            for key in _PYTHON_KEYS:
                if key in func.py_kernels and (
                    "upsample" in func._opname or mode.lists(func, forward=True)
                ):
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

    found = []
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        if isinstance(packet, torch._ops.OpOverloadPacket):
            overloads = (getattr(packet, each) for each in packet.overloads())
            found += [each for each in overloads if any(k in each.py_kernels for k in _PYTHON_KEYS)]
    return tuple(found)
