"""The mode that recordings and probes are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detmode.bits.tensors import is_foreign
from detmode.mode.dispatch_stack import take_off
from detmode.mode.higher_order import hand_over_to, with_bodies
from detmode.mode.other_threads import Witness
from detmode.process.callbacks import callbacks_at_once
from detmode.process.dispatch import (
    caller_of,
    compiled_as_outside,
    resolve_views,
    untraced,
    with_tensors,
)
from detmode.process.patched import Patched
from detmode.process.threads import follow_threads
from detmode.process.torch_settings import IN_MODES
from detmode.process.undo import Undo, tell_if_elsewhere
from detmode.runs.compiled_graphs import (
    CALL,
    Graph,
    graph_of,
    is_compilers_own,
    running,
)
from detmode.sites.forward_memory import forward_memory
from detmode.sites.graph_nodes import site_from
from detmode.sites.module_path import ModulePaths
from detmode.sites.observers import Observer
from detmode.sites.sharding import is_propagation, is_wrapper
from detmode.table.call_site import CallSite
from detmode.table.names import overload_name
from detmode.table.twins import SITE, original_of


def _name_of(func: torch._ops.OpOverload, *_: Any) -> str | None:
    return None if is_wrapper(func) else overload_name(func)


_Self = TypeVar("_Self", bound="RunObserver")


class RunObserver(Observer):
    """Observes every operator of a block, and the operators inside those of tensor subclasses."""

    supports_higher_order_operators = True
    _shows: tuple[Patched, ...] = (CALL,)
    """The functions of PyTorch that show an observer what no operator does."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: list[Undo] = []
        self.other_threads = Witness(_name_of, beside_modes=True)
        """The calls of threads that the block's thread starts, which are not observed."""

    @untraced
    def __enter__(self: _Self) -> _Self:
        hand_over_to(type(self))
        self._forward, self._paths = forward_memory(), ModulePaths()
        self._forward.begin_observing()
        self._functions: dict[str, str] = {}
        undo = Undo()
        self._blocks.append(undo)
        for function in self._shows:
            function.until(undo)
        compiled = ExitStack()
        undo.note(functools.partial(undo.run_in_thread, compiled.close))
        compiled.enter_context(compiled_as_outside())
        callbacks_at_once(undo)
        follow_threads(self.other_threads.in_this_thread, undo)
        IN_MODES.save(undo)
        # What its own entering has remembered, to restore what IN_MODES restores.
        undo.note(functools.partial(TorchDispatchMode.__init__, self))
        off = functools.partial(take_off, self, [])
        undo.note(functools.partial(undo.run_in_thread, off))
        TorchDispatchMode.__enter__(self)
        return self

    @untraced
    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        undo = self._blocks.pop()
        undo.run()
        tell_if_elsewhere(undo, type(self).__name__, error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        resolve_views()
        # The thread of a block that another one has left has yet to take the mode off.
        passes = self._thread.is_inside or not self._blocks
        if not isinstance(func, torch._ops.OpOverload):
            if passes:
                return func(*args, **kwargs)
            self._meet_higher_order(func)
            return func(*with_bodies(self, args), **kwargs)
        args = with_tensors(func, args)
        if passes:
            return caller_of(func)(*args, **kwargs)
        if any(is_foreign(cls) for cls in types):
            # A subclass desugars first; the operators that it runs are observed.
            return NotImplemented
        return self.observe(func, args, kwargs, caller_of(func))

    def observe(
        self,
        func: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Callable[..., Any],
        place: CallSite | None = None,
    ) -> Any:
        """Observe one call; of a twin, as one of its original. See :class:`Observer`."""
        if (
            self._thread.is_inside
            or not self._blocks
            or is_compilers_own(func)
            or is_wrapper(func)
            or is_propagation()
        ):
            return run(*args, **kwargs)
        original = original_of(func)
        if original is not None:
            site = kwargs.pop(SITE)
            func, run = original, functools.partial(run, site=site)
            place, *_ = site_from(site, self._forward.caller())
        elif running.graph is not None:
            place = running.graph.place
        return super().observe(func, args, kwargs, run, place)

    def observe_graph(self, compiled: Any, inputs: Any, run: Callable[[Any], Any]) -> Any:
        """Observe the call of a graph. See :class:`Observer`."""
        if self._thread.is_inside:
            return run(inputs)
        outer = running.graph
        graph = running.graph = graph_of(compiled, self._forward, self._paths, self._functions)
        try:
            return self._observe_graph(graph, inputs, run)
        finally:
            running.graph = outer

    def _observe_graph(self, graph: Graph, inputs: Any, run: Callable[[Any], Any]) -> Any:
        """Observe a graph that is not inside an observed call."""
        raise NotImplementedError

    def _meet_higher_order(self, func: Any) -> None:
        """Note a higher-order operator; of it, the bodies are observed."""
