"""Autograd's nodes: values by their numbers, the calls that make them, and those that run."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Generic, TypeVar

import torch

from detmode.process.bounded import Bounded

T = TypeVar("T")

COPY_SLICES = "CopySlices"
_APPLY = torch.autograd.function.BackwardCFunction.apply.__code__
_NOTES = 1 << 16
_NAMES = 1 << 12


class ByNode(Generic[T]):
    """Values for autograd nodes, by their numbers.

    Numbers belong to the thread that makes the node: those of autograd's own threads
    (recomputation, double backward) may repeat this thread's.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._own: Bounded[int, T] = Bounded(_NOTES)
        self.foreign: Bounded[int, T] = Bounded(_NOTES)

    @property
    def mine(self) -> Bounded[int, T]:
        """The values for the nodes that the current thread makes."""
        return self._own if threading.get_ident() == self._thread else self.foreign

    @property
    def repeats(self) -> bool:
        """True if the current thread's numbers may repeat, because several threads share them."""
        return self.mine is self.foreign

    def of(self, node: torch.autograd.graph.Node) -> list[T]:
        """Return the candidates for a node's value: one, or two if numbers repeat."""
        # Writing to a view: the node of the copy is made right after the one of the operator.
        number = node._sequence_nr() - node.name().endswith(COPY_SLICES)
        return list(filter(None, (self._own.get(number), self.foreign.get(number))))


def nodes_around() -> Iterator[torch.autograd.graph.Node]:
    """Return the nodes of autograd functions in whose backward, written in Python, this is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _APPLY:
            yield frame.f_locals["self"]
        frame = frame.f_back


@functools.lru_cache(_NAMES)
def may_be_made_by(operator: str, node: str) -> bool:
    """Return whether a call of ``operator`` may have made a node named ``node``.

    PyTorch names a node after its operator: ``MaxPool2DWithIndicesBackward0``. Nodes of C++ and of
    registered operators have other names, which say nothing.
    """
    if "::" in node or node.startswith("GeneratedBackwardFor"):
        return True
    backward = operator.partition("::")[2].replace("_", "") + "backward"
    return node.lower().startswith(backward.replace("forwardbackward", "backward"))
