"""The forward calls that a thread remembers for their backward.

Backward runs without the user's frames, so the forward call is remembered by the sequence number of
the autograd node that it makes; backward gives the number back. Each thread has its own memory,
because sequence numbers belong to threads.
"""

from __future__ import annotations

import functools
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from types import FrameType
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from detmode.process.memo import keep_bounded
from detmode.process.undo import Undo
from detmode.sites.autograd_nodes import (
    COPY_SLICES,
    ByNode,
    may_be_made_by,
    nodes_around,
    values_of,
)
from detmode.sites.graph_nodes import place_of
from detmode.sites.lines import backward_site, nearest, nearest_place, own_line, site_of
from detmode.sites.module_path import ModulePaths
from detmode.sites.native_memory import process
from detmode.sites.source_lines import place_in
from detmode.sites.user_files import is_users
from detmode.table.call_site import CallSite, Note, Site
from detmode.table.names import matches
from detmode.table.outcome import ActionName

_get_sequence_nr = torch._C._autograd._get_sequence_nr
_get_frame = sys._getframe
_current_node = torch._C._current_autograd_node
_FunctionBase = torch._C._FunctionBase
_INTERVALS = 1 << 12
_NOTES = 1 << 16

T = TypeVar("T")


class _Placed(Protocol):
    """A call whose place is looked for.

    Attributes:
        name: its overload, as reports show it.
        site: the place, once it has been looked up.
        notes: those of the forward calls whose backward makes the call, once looked up.
    """

    name: str
    site: CallSite | None
    notes: Sequence[Note] | None

    @property
    def names(self) -> tuple[str, ...]:
        """All names that mean its overload."""


class ForwardMemory:
    """The memory of one thread: forward calls, and open and past allow regions.

    Attributes:
        had_regions: true once the thread has entered an allow region.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._notes: ByNode[Note] = {}, {}
        # Separate from the notes, which decide what is allowed: observers must not change those.
        self._places: ByNode[CallSite] = {}, {}
        # Of nodes that compiled graphs make, the place where the graph was called.
        self._callers: ByNode[CallSite] = {}, {}
        # The first node that an observer may have seen being made.
        self._observed_from = 0
        # The patterns of open regions.
        self._active: dict[Undo, tuple[str, ...]] = {}
        self.had_regions = False
        # A past region, by the sequence numbers of the nodes made in it: (end, start, patterns).
        self._past: list[tuple[int, int, tuple[str, ...]]] = []

    @property
    def _repeats(self) -> bool:
        """True if the current thread's numbers may repeat, because several threads share them."""
        return threading.get_ident() != self._thread

    def _keep(self, by_node: ByNode[T], number: int, value: T) -> None:
        keep_bounded(by_node[self._repeats], number, value, _NOTES)

    def open_region(self, patterns: tuple[str, ...], undo: Undo) -> None:
        """Open a region in which ``patterns`` are allowed; it ends when ``undo`` runs."""
        undo.note(functools.partial(self._close, undo, _get_sequence_nr()))
        self.had_regions = process.had_regions = True
        process.mark(process.regions, undo, True)
        self._active[undo] = patterns

    def _close(self, undo: Undo, start: int) -> None:
        process.mark(process.regions, undo, False)
        if undo not in self._active:
            return
        end = _get_sequence_nr()
        # Another thread, which may end the block, counts other nodes.
        if end > start and undo.is_here:
            self._past.append((end, start, self._active[undo]))
        if len(self._past) > _INTERVALS:
            # What is forgotten is refused again: the safe side.
            del self._past[: _INTERVALS // 4]
        self._active.pop(undo, None)

    def _notes_of(self, node: torch.autograd.graph.Node) -> list[Note]:
        """Return the notes of the calls that may have made ``node``, perhaps in another thread."""
        name, notes = node.name(), values_of(node, self._notes)
        if not notes and process.native_memory is not None:
            notes = process.native_memory.noted()
        if name.endswith(COPY_SLICES):
            return notes
        return [note for note in notes if may_be_made_by(note.names[0], name)]

    def find_site(self, call: _Placed, paths: ModulePaths, *, in_backward: bool = True) -> None:
        """Set ``call.site`` to the place where the call is made that is being dispatched.

        Of a backward operator it is the site of its forward. Where that is not known, it is that of
        the call of backward, if ``in_backward`` is true.
        """
        node = _current_node()
        if node is not None and call.notes is None:
            call.notes = self._notes_of(node)
        try:
            # Python makes an object of each frame that is looked at. There is no need of one of
            # this function, of what calls it, and of what PyTorch has called.
            frame = _get_frame(3)
        except ValueError:
            # A thread of PyTorch's own has no others.
            frame = None
        forward = call.notes[0].site if call.notes else None
        site, overload = self.locate(frame, forward, paths)
        if overload and overload.replace("_.", ".") == call.name.replace("_.", "."):
            call.name = overload
        if site is None and in_backward:
            site = CallSite(backward_site(), None)
        call.site = site

    def locate(
        self,
        frame: FrameType | None,
        forward: CallSite | None,
        paths: ModulePaths,
        *,
        exact: bool = False,
    ) -> tuple[CallSite | None, str]:
        """Return the place of the call that is being dispatched: the user's line, and the module.

        ``forward`` is that of the forward call, in its backward; ``exact`` is as for
        :func:`~detmode.sites.lines.nearest_place`. The paths take the program's own line.

        Returns:
            ``None`` if it is not known, and the overload of a compiled graph's node, or ``""``.
        """
        site, overload = None, ""
        if (nearby := nearest_place(frame, paths, exact=exact)) is not None:
            user, site, is_graphs = nearby
            if is_graphs:
                caller = self.caller()
                place, overload = place_of(user, caller, paths)
                user = nearest(user) or user
                site = place or caller or CallSite(site_of(user), site.module)
            if site.site.text not in paths.own_lines:
                paths.own_lines[site.site.text] = own_line(user)
        if forward is not None and (site is None or site.module is None):
            # A Python function's backward, or a hook, belongs to the module of the forward call.
            site = forward if site is None else CallSite(site.site, forward.module)
        return site, overload

    def remember_call(self, call: _Placed, paths: ModulePaths, number: int | None = None) -> None:
        """Note site and allow regions of a forward call, for the backward of the node it makes.

        A call inside a backward (activation checkpointing, double backward) takes over what was
        allowed where that backward comes from. Without ``number`` it is the newest node.
        """
        if number is None:
            number = _get_sequence_nr() - 1
        if not self._repeats and number in self._notes[0]:
            # Made by an earlier call: this one (empty_like, detach) makes none.
            return
        self.find_site(call, paths, in_backward=False)
        if call.site is None:
            return
        allowed = list(self._active.values())
        node = _current_node()
        if node is not None:
            notes = call.notes or ()
            # What holds for all that the node may be.
            allowed += [
                patterns
                for patterns in (notes[0].allowed if notes else ())
                if all(patterns in note.allowed for note in notes)
            ]
            allowed += self._allowed_around(node)
        note = Note(call.site, call.names, tuple(dict.fromkeys(allowed)))
        if process.native_memory is None or process.native_memory.note(number, note):
            self._keep(self._notes, number, note)

    def begin_observing(self) -> None:
        """Remember places for an observer, which has not seen the calls that made older nodes."""
        self._observed_from = _get_sequence_nr()

    def place_of_call(self, paths: ModulePaths, inputs: Iterable[Tensor] | None = None) -> CallSite:
        """Return the place of the call being dispatched; in backward, that of the forward call.

        Args:
            paths: those of the modules.
            inputs: the call's tensors, which tell whether a backward will refer to it. Without
                them it may, if the call is the first one since an autograd node was made.
        """
        place = self._observed_place(paths)
        if inputs is None or any(tensor.requires_grad for tensor in inputs):
            self._remember_place(place)
        return place

    def place_of_function(
        self, paths: ModulePaths, frame: FrameType | None, *, makes_node: bool
    ) -> CallSite:
        """Return the place of a compiled function that is being called, of which this is the frame.

        It is the function's first line; of one of PyTorch's own, the line that calls it.
        """
        place = self._observed_place(paths)
        if frame is not None and is_users(frame.f_code.co_filename):
            file, line = frame.f_code.co_filename, frame.f_code.co_firstlineno
            place = CallSite(Site(place_in(file, line), file, line), place.module)
        if makes_node:
            self._remember_place(place)
        return place

    def _observed_place(self, paths: ModulePaths) -> CallSite:
        place, _ = self.locate(_get_frame(), self.current_place(), paths, exact=True)
        return place or CallSite(backward_site(), None)

    def _remember_place(self, place: CallSite) -> None:
        """Note the place of the call that makes the newest autograd node, if it makes one."""
        number = _get_sequence_nr() - 1
        if not self._repeats:
            # The first that is seen after a node was made has made it, even where gradients are
            # off: the body of an autograd.Function. Others (detach, argmax) make none.
            if number >= self._observed_from and number not in self._places[0]:
                self._keep(self._places, number, place)
        elif torch.is_grad_enabled():
            self._keep(self._places, number, place)

    def current_place(self) -> CallSite | None:
        """Return the site of the forward call whose backward is running."""
        node = _current_node()
        if node is None:
            return None
        places = values_of(node, self._places)
        if places:
            return places[0]
        notes = self._notes_of(node)
        return notes[0].site if notes else None

    def call_from(
        self, frame: FrameType, paths: ModulePaths, graph: Callable[..., Any], *args: Any
    ) -> Any:
        """Call a compiled graph from a frame, and remember the place for backward.

        A graph has neither the path of the module that calls it, since modules of one class share
        the graph, nor the user's line, if all its own are in PyTorch.
        """
        nearby = nearest_place(frame, paths)
        user = nearest(nearby[0]) if nearby is not None else None
        caller = CallSite(site_of(user), nearby[1].module) if nearby and user is not None else None
        start, outer = _get_sequence_nr(), _current.caller
        _current.caller = caller
        try:
            return graph(*args)
        finally:
            _current.caller = outer
            if caller is not None:
                for number in range(start, _get_sequence_nr()):
                    self._keep(self._callers, number, caller)

    def caller(self) -> CallSite | None:
        """Return the place where the compiled graph is called that is running, or its backward."""
        node = _current_node()
        if _current.caller is not None or node is None:
            return _current.caller
        return next(iter(values_of(node, self._callers)), None)

    def allows(self, call: _Placed) -> bool:
        """Return whether an allow region covers the call: open now, or when the node was made."""
        names = call.names
        active = list(self._active.values())
        if matches(names, chain(*active)):
            return True
        node = _current_node()
        if node is None:
            return False
        if call.notes is None:
            call.notes = self._notes_of(node)
        past = self._allowed_around(node)
        if not call.notes:
            # torch.func hides which calls make a node; the backward's name tells the forward's.
            names += tuple(
                name[: -len("_backward")] for name in names if name.endswith("_backward")
            )
            past += active
        elif all(matches((*note.names, *names), chain(*note.allowed)) for note in call.notes):
            return True
        return matches(names, chain(*past))

    def _allowed_around(self, node: torch.autograd.graph.Node) -> list[tuple[str, ...]]:
        """Return the patterns of the past regions that hold for the calls in a node's backward.

        So do those of the nodes around it: a re-entrant checkpoint makes others, and runs them.
        """
        # Where numbers repeat, a past region holds only for nodes that have a note of their own.
        if self._notes[1]:
            return []
        nodes = [node, *nodes_around()] if isinstance(node, _FunctionBase) else [node]
        return [patterns for n in nodes for patterns in self._allowed_in(n._sequence_nr())]

    def override_of(self, call: _Placed, overrides: Mapping[str, ActionName]) -> ActionName | None:
        """Return the action that overrides give the forward of a call; ``None`` if they do not."""
        node = _current_node()
        if node is None:
            return None
        if call.notes is None:
            call.notes = self._notes_of(node)
        for name, action in overrides.items():
            if call.notes and all(matches(note.names, (name,)) for note in call.notes):
                return action
        return None

    def _allowed_in(self, sequence_number: int) -> list[tuple[str, ...]]:
        """Return the patterns of the past regions in which the node was made."""
        position = bisect_right(self._past, sequence_number, key=lambda region: region[0])
        return [
            patterns for _, start, patterns in self._past[position:] if start <= sequence_number
        ]


def forward_place(paths: ModulePaths) -> CallSite | None:
    """Return the place of a call outside backward and compiled graphs; ``None`` for others.

    It is that of :meth:`ForwardMemory.find_site`, sooner, for a call at a site that is known.
    """
    if _current_node() is not None:
        return None
    place = nearest_place(_get_frame(3), paths)
    return None if place is None or place[2] else place[1]


class _Current(threading.local):
    caller: CallSite | None = None
    """The place from which the thread calls a compiled graph."""


_current = _Current()
_local = threading.local()


def forward_memory() -> ForwardMemory:
    """Return the memory of the current thread."""
    memory: ForwardMemory | None = getattr(_local, "memory", None)
    if memory is None:
        memory = _local.memory = ForwardMemory()
    return memory
