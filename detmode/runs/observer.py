"""The mode that recordings and probes are."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detmode.environment.dispatch import resolve_views
from detmode.mode.higher_order import register_passthrough
from detmode.runs.tensors import is_foreign
from detmode.sites.call_sites import CallSites
from detmode.sites.observers import Observer

_Self = TypeVar("_Self", bound="RunObserver")


class RunObserver(Observer):
    """Observes every operator of a block, and the operators inside those of tensor subclasses."""

    supports_higher_order_operators = True

    def __enter__(self: _Self) -> _Self:
        register_passthrough(type(self))
        self._places = CallSites()
        TorchDispatchMode.__enter__(self)
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        resolve_views()
        if self._thread.is_inside:
            return func(*args, **kwargs)
        if not isinstance(func, torch._ops.OpOverload):
            self._meet_higher_order(func)
            return func(*args, **kwargs)
        if any(is_foreign(cls) for cls in types):
            # A subclass desugars first; the operators that it runs are observed.
            return NotImplemented
        return self.observe(func, args, kwargs, func)

    def _meet_higher_order(self, func: Any) -> None:
        """Note a higher-order operator, which runs unobserved."""
