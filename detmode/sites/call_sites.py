"""Where each call is made, for those who look on: recordings and probes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from detmode.sites.forward_memory import forward_memory
from detmode.sites.lines import backward_site, site_of, surroundings
from detmode.sites.module_path import ModulePaths
from detmode.table.call_site import CallSite

_current_node = torch._C._current_autograd_node


class CallSites:
    """The place of each call that is made from now on in this thread and in its backward."""

    def __init__(self) -> None:
        self._memory = forward_memory()
        self._since = torch._C._autograd._get_sequence_nr()
        self._paths = ModulePaths()

    def of_call(self, inputs: Iterable[Tensor]) -> CallSite:
        """Where the call is made that is being dispatched; of a backward operator, its forward.

        Args:
            inputs: the call's tensors, by which it is seen whether backward will come back to it.
        """
        place = self._place()
        if any(tensor.requires_grad for tensor in inputs):
            self._memory.remember_place(place, self._since)
        return place

    def _place(self) -> CallSite:
        frame, modules = surroundings()
        in_backward = _current_node() is not None
        if frame is None:
            return self._memory.current_place() or CallSite(backward_site(), None)
        if modules:
            return CallSite(site_of(frame), self._paths.of(modules, recomputed=in_backward))
        # A function's own backward, and a hook: of the module whose forward made the node.
        forward = self._memory.current_place() if in_backward else None
        return CallSite(site_of(frame), forward.module if forward is not None else None)
