"""Where each call is made, for those who look on: recordings and probes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from detmode.sites.forward_memory import trace
from detmode.sites.lines import backward_site, site_of, surroundings
from detmode.sites.module_path import ModulePaths
from detmode.table.call_site import Place

_current_node = torch._C._current_autograd_node


class Places:
    """The place of each call that is made from now on in this thread and in its backward."""

    def __init__(self) -> None:
        self._trace = trace()
        self._since = torch._C._autograd._get_sequence_nr()
        self._paths = ModulePaths()

    def of_call(self, inputs: Iterable[Tensor]) -> Place:
        """Where the call is made that is being dispatched; of a backward operator, its forward.

        Args:
            inputs: the call's tensors, by which it is seen whether backward will come back to it.
        """
        place = self._place()
        if any(tensor.requires_grad for tensor in inputs):
            self._trace.remember_place(place, self._since)
        return place

    def _place(self) -> Place:
        frame, modules = surroundings()
        in_backward = _current_node() is not None
        if frame is None:
            return self._trace.current_place() or Place(backward_site(), None)
        if modules:
            return Place(site_of(frame), self._paths.of(modules, recomputed=in_backward))
        # A function's own backward, and a hook: of the module whose forward made the node.
        forward = self._trace.current_place() if in_backward else None
        return Place(site_of(frame), forward.module if forward is not None else None)
