"""The site of each call, for recordings, probes and audits."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType

import torch
from torch import Tensor

from detmode.sites.cells import place_in
from detmode.sites.forward_memory import forward_memory
from detmode.sites.graph_nodes import site_from
from detmode.sites.lines import backward_site
from detmode.sites.module_path import ModulePaths
from detmode.sites.user_files import is_users
from detmode.table.call_site import CallSite, Site


class CallSites:
    """Finds the sites of the calls made from now on in this thread and in its backward."""

    def __init__(self) -> None:
        self._memory = forward_memory()
        self._since = torch._C._autograd._get_sequence_nr()
        self._paths = ModulePaths()

    def of_call(self, inputs: Iterable[Tensor] | None = None) -> CallSite:
        """Return the site of the call being dispatched; in backward, that of the forward call.

        Args:
            inputs: the call's tensors, which tell whether a backward will refer to it. Without
                them it may, if the call is the first one since an autograd node was made.
        """
        place = self._place()
        if inputs is None or any(tensor.requires_grad for tensor in inputs):
            self._memory.remember_place(place, self._since)
        return place

    def of_function(self, frame: FrameType | None, *, makes_node: bool) -> CallSite:
        """Return the place of a compiled function that is being called: where it begins.

        Args:
            frame: of the function; of one of PyTorch's own, its place is where it is called.
            makes_node: true if a backward will refer to the call.
        """
        place = self._place()
        if frame is not None and is_users(frame.f_code.co_filename):
            file, line = frame.f_code.co_filename, frame.f_code.co_firstlineno
            place = CallSite(Site(place_in(file, line), file, line), place.module)
        if makes_node:
            self._memory.remember_place(place, self._since)
        return place

    def of_twin(self, site: str) -> CallSite:
        """Return the place of a call that compiled code makes, by the site that it carries."""
        return site_from(site, self._memory.caller())[0]

    def _place(self) -> CallSite:
        forward = self._memory.current_place()
        place, _ = self._memory.locate(sys._getframe(), forward, self._paths, exact=True)
        return place or CallSite(backward_site(), None)
