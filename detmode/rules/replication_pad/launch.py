"""Launchers of the backward of replication padding."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from detmode.cuda.checks import raises_like_aten
from detmode.cuda.rows.padding import gather_backward


@raises_like_aten
def replication_pad1d_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
    """As :func:`~detmode.cuda.rows.padding.gather_backward`, in one dimension."""
    return gather_backward("replication_pad", 1, grad_output, self, padding)


@raises_like_aten
def replication_pad2d_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
    """As :func:`~detmode.cuda.rows.padding.gather_backward`, in two dimensions."""
    return gather_backward("replication_pad", 2, grad_output, self, padding)


@raises_like_aten
def replication_pad3d_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
    """As :func:`~detmode.cuda.rows.padding.gather_backward`, in three dimensions."""
    return gather_backward("replication_pad", 3, grad_output, self, padding)
