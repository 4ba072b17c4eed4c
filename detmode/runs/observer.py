"""The mode that recordings and probes are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detmode.cuda.undo import Undo
from detmode.environment.callbacks import callbacks_at_once
from detmode.environment.dispatch import (
    caller_of,
    compiled_as_outside,
    resolve_views,
    untraced,
    with_tensors,
)
from detmode.mode.higher_order import hand_over_to, with_bodies
from detmode.mode.repetition.tensors import is_foreign
from detmode.runs import graphs
from detmode.sites.call_sites import CallSites
from detmode.sites.observers import Observer
from detmode.sites.sharding import is_propagation, is_wrapper
from detmode.table.call_site import CallSite
from detmode.table.twins import SITE, original_of

_Self = TypeVar("_Self", bound="RunObserver")


class RunObserver(Observer):
    """Observes every operator of a block, and the operators inside those of tensor subclasses."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._blocks: list[ExitStack] = []

    @untraced
    def __enter__(self: _Self) -> _Self:
        hand_over_to(type(self))
        self._places = CallSites()
        self._functions: dict[str, str] = {}
        graphs.watch()
        undo = Undo()
        self._blocks.append(ExitStack())
        self._blocks[-1].enter_context(compiled_as_outside())
        self._blocks[-1].callback(undo.run)
        callbacks_at_once(undo)
        TorchDispatchMode.__enter__(self)
        return self

    @untraced
    def __exit__(self, *error: Any) -> None:
        self._blocks.pop().close()
        TorchDispatchMode.__exit__(self, *error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        resolve_views()
        if not isinstance(func, torch._ops.OpOverload):
            if self._thread.is_inside:
                return func(*args, **kwargs)
            self._meet_higher_order(func)
            return func(*with_bodies(self, args), **kwargs)
        args = with_tensors(func, args)
        if self._thread.is_inside:
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
            or graphs.is_compilers_own(func)
            or is_wrapper(func)
            or is_propagation()
        ):
            return run(*args, **kwargs)
        original = original_of(func)
        if original is not None:
            site = kwargs.pop(SITE)
            func, run = original, functools.partial(run, site=site)
            place = self._places.of_twin(site)
        elif graphs.running.graph is not None:
            place = graphs.running.graph.place
        return super().observe(func, args, kwargs, run, place)

    def observe_graph(self, compiled: Any, inputs: Any, run: Callable[[Any], Any]) -> Any:
        """Observe the call of a graph. See :class:`Observer`."""
        if self._thread.is_inside:
            return run(inputs)
        outer = graphs.running.graph
        graph = graphs.running.graph = graphs.graph_of(compiled, self._places, self._functions)
        try:
            return self._observe_graph(graph, inputs, run)
        finally:
            graphs.running.graph = outer

    def _observe_graph(self, graph: graphs.Graph, inputs: Any, run: Callable[[Any], Any]) -> Any:
        """Observe a graph that is not inside an observed call."""
        raise NotImplementedError

    def _meet_higher_order(self, func: Any) -> None:
        """Note a higher-order operator; of it, the bodies are observed."""
