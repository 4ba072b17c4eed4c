"""The path of a call's module in its model: "Net.blocks.1.linear"."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence

from torch.nn import Module


def module_path(modules: Sequence[Module]) -> str | None:
    """The path of the last of the modules that call each other, by the class of the first one."""
    if not modules:
        return None
    steps = itertools.starmap(_step, itertools.pairwise(modules))
    return "".join((type(modules[0]).__name__, *steps))


def _step(parent: Module, child: Module) -> str:
    for name, module in parent.named_modules():
        if module is child and name:
            return f".{name}"
    return f".{type(child).__name__}"


class _Node:
    """A module that was called by those above it."""

    __slots__ = ("children", "path", "reference")

    def __init__(self, path: str) -> None:
        self.path = path
        self.children: dict[int, _Node] = {}
        self.reference: weakref.ref[Module] | None = None


class ModulePaths:
    """The paths of one run's modules, each looked up once.

    A module that is called at several places of the model has a path at each of them. Modules are
    told by their identity, and none is kept alive.
    """

    def __init__(self) -> None:
        self._called = _Node("")
        self._recomputed = _Node("")
        # The path by which a module was met first, below another one.
        self._known = _Node("")

    def of(self, modules: Sequence[Module], *, recomputed: bool) -> str:
        """The path of the last of ``modules``, which call each other, the outermost first.

        Args:
            modules: at least one.
            recomputed: whether a backward calls them. The first one then has the path that it had
                in forward: activation checkpointing begins in the middle of the model.
        """
        node = self._recomputed if recomputed else self._called
        above: Module | None = None
        for module in modules:
            found = node.children.get(id(module))
            if found is None:
                if above is not None:
                    path = node.path + _step(above, module)
                    if id(module) not in self._known.children:
                        _add(self._known, module, path)
                else:
                    known = self._known.children.get(id(module)) if recomputed else None
                    path = type(module).__name__ if known is None else known.path
                found = _add(node, module, path)
            node, above = found, module
        return node.path


def _add(parent: _Node, module: Module, path: str) -> _Node:
    node = parent.children[id(module)] = _Node(path)
    # Forgotten with the module, before another one can have its address.
    siblings, address = parent.children, id(module)
    node.reference = weakref.ref(module, lambda _: siblings.pop(address, None))
    return node
