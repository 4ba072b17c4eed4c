"""The forms of tensors, the dense ones of a sparse one, and where their elements lie."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor

from detmode.cuda.plan import Form

_BY_ROW, _BY_COLUMN = ("crow_indices", "col_indices"), ("ccol_indices", "row_indices")
COMPONENTS = {
    torch.strided: (),
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: (*_BY_ROW, "values"),
    torch.sparse_csc: (*_BY_COLUMN, "values"),
    torch.sparse_bsr: (*_BY_ROW, "values"),
    torch.sparse_bsc: (*_BY_COLUMN, "values"),
}
"""By layout, the methods that return the dense tensors in which a sparse one's elements lie."""


def components(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return strided tensors as they are, and in place of each sparse one its components."""
    return [
        component
        for tensor in tensors
        for component in (
            [getattr(tensor, name)() for name in COMPONENTS[tensor.layout]]
            if tensor.layout is not torch.strided
            else [tensor]
        )
    ]


def form_of(tensor: Tensor) -> Form:
    """The form of a strided tensor."""
    return Form(tensor.dtype, tuple(tensor.shape), tensor.stride())


def range_of(tensor: Tensor) -> tuple[int, int]:
    """The addresses from a tensor's first element to the end of its last one."""
    start = tensor.data_ptr()
    # PyTorch's own product is sooner.
    return start, start + (tensor if tensor.is_contiguous() else form_of(tensor)).nbytes


def share_memory(ranges: Iterable[tuple[int, int]]) -> bool:
    """Return whether two of the ranges of addresses overlap; empty ones do not."""
    in_order = sorted(memory for memory in ranges if memory[0] < memory[1])
    return any(first[1] > second[0] for first, second in itertools.pairwise(in_order))


def is_dense(form: Form) -> bool:
    """Return whether the elements fill the memory between the first and the last, each once."""
    expected = 1
    for stride, size in sorted(zip(form.strides, form.sizes)):
        if size != 1 and stride != expected:
            return 0 in form.sizes
        expected *= size
    return True
