"""Rules to add for ties by the smallest index in ``topk`` and ``mode`` too, on any GPU.

PyTorch's own results do not vary between runs here, so no row of the table replaces them; but
which index of equal values they name depends on the size of the row, the GPU and the version::

    DeterministicMode(rules=default_rules() + SMALLEST_INDEX)

``topk`` gives its values in order, also with ``sorted=False``, and equal ones by their index.
``mode`` gives the smallest of the most common values, and the smallest index that holds it. 0.0
and -0.0 are equal. In ``topk`` so are NaNs; in ``mode`` every NaN is a value of its own, larger
than all numbers, where ATen compares with ``<`` and may take the numbers between NaNs apart.

The price is a stable sort of whole rows: for float32 up to 4 passes that read and write 12 bytes an
element, where ATen's ``topk`` reads 4 bytes some 17 times. ``mode`` then moves some 80 bytes an
element more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda.checks import check_implemented
from detmode.cuda.rows.positions import axis_of
from detmode.rules.order_statistics.launch import refuse_size_0
from detmode.table.conditions import FLOATING, INTEGRAL, on
from detmode.table.rule import GPU_TO_GPU, Native, Rule, Substitute

__all__ = ["SMALLEST_INDEX"]


def topk(
    self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """``aten::topk``: the ``k`` largest or smallest values along ``dim``, in order.

    Returns:
        Values and int64 indices, contiguous; equal values by ascending index.

    Raises:
        IndexError: ``dim`` is out of range.
        RuntimeError: ``k`` is out of range, or a bool or complex tensor.
    """
    axis = axis_of(self, dim)
    if not 0 <= k <= (self.shape[axis] if self.dim() else 1):
        raise RuntimeError("selected index k out of range")
    if self.dtype not in FLOATING + INTEGRAL:
        raise RuntimeError(f"topk does not support {self.dtype}")
    if self.dim() == 0:
        return self.clone(), torch.zeros((), dtype=torch.int64, device=self.device)
    # A stable sort has one result, whatever the algorithm and the order of its threads.
    values, indices = torch.sort(self, dim=axis, descending=largest, stable=True)
    first = torch.contiguous_format
    return (
        values.narrow(axis, 0, k).clone(memory_format=first),
        indices.narrow(axis, 0, k).clone(memory_format=first),
    )


def mode(self: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """``aten::mode``: the most common value along ``dim``, of several the smallest.

    Returns:
        The values, and for each the smallest index along ``dim`` that holds it.

    Raises:
        IndexError: ``dim`` is out of range, or has size 0.
        NotImplementedError: a complex tensor.
    """
    axis = axis_of(self, dim)
    refuse_size_0("mode", self, axis)
    check_implemented("mode", self.dtype, (*FLOATING, *INTEGRAL, torch.bool))
    if self.dim() == 0:
        return self.clone(), torch.zeros((), dtype=torch.int64, device=self.device)
    ordered, order = torch.sort(self.movedim(axis, -1), dim=-1, stable=True)
    place = torch.arange(ordered.shape[-1], device=self.device).expand(ordered.shape)
    goes_on = torch.zeros(ordered.shape, dtype=torch.bool, device=self.device)
    goes_on[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
    begin = torch.cummax(place.masked_fill(goes_on, 0), -1)[0]
    if ordered.numel() == 0:
        begin = begin[..., :1]
    else:
        # The first of the longest runs is that of the smallest value.
        longest = torch.argmax(place - begin, dim=-1, keepdim=True)
        begin = begin.gather(-1, longest)
    results = (ordered.gather(-1, begin), order.gather(-1, begin))
    values, indices = (
        (values.movedim(-1, axis) if keepdim else values.squeeze(-1)).contiguous()
        for values in results
    )
    return values, indices


SMALLEST_INDEX: tuple[Rule, ...] = tuple(
    Rule(
        op=op,
        when=on("cuda"),
        action=Substitute(function, otherwise=Native(), traffic=traffic),
        guarantee=GPU_TO_GPU,
        because=f"which index of {what} is taken depends on the kernel that PyTorch chooses",
    )
    for op, function, traffic, what in (
        ("aten::topk", topk, 24.0, "equal values"),
        ("aten::mode", mode, 44.0, "the value"),
    )
)
"""For ``default_rules() + SMALLEST_INDEX``: ties of topk and mode go to the smallest index."""
