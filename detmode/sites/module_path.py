"""The path of a call's module in its model: "Net.blocks.1.linear"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch.nn import Module

from detmode.process.memo import ById

_COMPILED = "_orig_mod"
"""The name under which ``torch.compile`` keeps a module in the one that takes its place."""


def _step(parent: Module, child: Module) -> str:
    """Return the shortest path of names from a module down to one that it calls."""
    level, seen = [("", parent)], {parent}
    while level:
        below = []
        for above, module in level:
            for name, inner in module.named_children():
                path = above if name == _COMPILED else f"{above}.{name}"
                if inner is child:
                    return path
                if inner not in seen:
                    seen.add(inner)
                    below.append((path, inner))
        level = below
    return f".{type(child).__name__}"


class _Node(NamedTuple):
    """A module that was called, below the modules that called it."""

    path: str
    children: ById[_Node]


class ModulePaths:
    """The paths of one run's modules, each looked up once.

    A module that is called at several places of the model has a path for each of them. Modules are
    identified by identity, and none is kept alive.

    Attributes:
        known: for each module, the path under which it was first called, preferably inside another
            module.
        own_lines: for each site of a call, the program's own line that first led there, or None.
        on_rename: called when a module gets another path than the one under which it is known.
    """

    def __init__(self) -> None:
        self._called, self._recomputed = _Node("", ById()), _Node("", ById())
        self.known: ById[str] = ById()
        self.own_lines: dict[str, str | None] = {}
        self.on_rename: Callable[[], object] | None = None

    def of(self, modules: Sequence[Module], *, recomputed: bool) -> str:
        """Return the path of the last of ``modules``, each of which calls the next.

        Args:
            modules: at least one module, the outermost first.
            recomputed: true if a backward calls them. The first module then has the path that it
                had in forward, because activation checkpointing starts in the middle of the model.
        """
        node = self._recomputed if recomputed else self._called
        above: Module | None = None
        for module in modules:
            child = node.children.get(id(module))
            if child is None:
                known = self.known.get(id(module))
                if above is not None:
                    path = node.path + _step(above, module)
                elif recomputed and known is not None:
                    path = known
                else:
                    path = type(module).__name__
                if known is None or "." not in known:
                    if known is not None and self.on_rename is not None:
                        self.on_rename()
                    self.known.keep(module, path)
                child = node.children.keep(module, _Node(path, ById()))
            node, above = child, module
        return node.path
