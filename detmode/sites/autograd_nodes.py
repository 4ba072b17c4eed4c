"""Autograd's nodes: values by their numbers, the calls that make them, and those that run."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TypeVar

import torch

T = TypeVar("T")

COPY_SLICES = "CopySlices"
_APPLY = torch.autograd.function.BackwardCFunction.apply.__code__
_NAMES = 1 << 12


ByNode = tuple[dict[int, T], dict[int, T]]
"""Values for autograd nodes, by their numbers: of nodes that the thread makes, and of others.

Numbers belong to the thread that makes the node: those of autograd's own threads (recomputation,
double backward) may repeat this thread's."""


def values_of(node: torch.autograd.graph.Node, by_node: ByNode[T]) -> list[T]:
    """Return the candidates for a node's value: one, or two if numbers repeat."""
    # Writing to a view: the node of the copy is made right after the one of the operator.
    number = node._sequence_nr() - node.name().endswith(COPY_SLICES)
    return [values[number] for values in by_node if number in values]


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
