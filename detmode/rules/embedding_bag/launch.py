"""Launchers of the backward of embedding bags with ``mode="max"``."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from detmode.cuda import Source, contiguous, ctype, launch, new_empty, new_zeros, sum_to_zeros
from detmode.cuda.checks import check_devices, check_implemented, raises_like_aten
from detmode.cuda.rows.positions import check_on_host
from detmode.cuda.rows.shapes import Rows, flat
from detmode.cuda.rows.strips import Strips
from detmode.cuda.rows.sums import add_rows
from detmode.cuda.rows.ways import Way, choose_sum
from detmode.table.conditions import FLOATING

INDICES = (torch.int64, torch.int32)

SOURCE = Source(
    __file__,
    "kernels.cu",
    entries=(
        *(
            f"embedding_bag_{kernel}<{ctype(dtype)}, {ctype(index)}>"
            for kernel, dtype, index in product(("sums", "addends"), FLOATING, INDICES)
        ),
        *(f"finish_sums<{ctype(dtype)}>" for dtype in FLOATING),
    ),
)


@raises_like_aten
def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """``aten::_embedding_bag_backward`` with ``mode`` 2: checks, then the dense backward.

    Raises:
        RuntimeError: ``indices``, ``offsets`` or ``offset2bag`` are not contiguous integers, and
            what :func:`embedding_bag_dense_backward` raises.
    """
    checked = {"indices": indices, "offsets": offsets}
    if offset2bag.numel() or not indices.numel():
        # Otherwise ATen makes one of its own, which "max" does not read.
        checked["offset2bag"] = offset2bag
    checking = "checking arguments for embedding_bag"
    for name, tensor in checked.items():
        if tensor.dtype not in INDICES:
            raise RuntimeError(
                f"Expected tensor for argument #1 '{name}' to have one of the following scalar "
                f"types: Long, Int; but got {tensor.dtype} instead (while {checking})"
            )
        if not tensor.is_contiguous():
            raise RuntimeError(
                "Expected contiguous tensor, but got non-contiguous tensor for argument #1 "
                f"'{name}' (while {checking})"
            )
    _check(grad, bag_size, maximum_indices, per_sample_weights)
    return add_bags(grad, bag_size, maximum_indices, num_weights, padding_idx)


@raises_like_aten
def embedding_bag_dense_backward(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """``aten::_embedding_bag_dense_backward`` with ``mode`` 2.

    Args:
        grad: (bags, D), floating point.
        indices: not read; what a bag chose is in ``maximum_indices``.
        offset2bag: not read.
        bag_size: int32 or int64, at least one for each bag: an empty bag gives nothing.
        maximum_indices: (bags, D), int32 or int64: the row that each column took its value from.
        num_weights: rows of the weight.
        scale_grad_by_freq: not read, as in ATen.
        mode: 2.
        per_sample_weights: ``None``.
        padding_idx: a row that gets nothing.

    Returns:
        (num_weights, D), contiguous, of the dtype of ``grad``.

    Raises:
        IndexError: ``grad`` has no second dimension; on the CPU also an index out of range.
        NotImplementedError: a dtype that is not floating point.
        RuntimeError: shapes, dtypes or devices that do not go together.
    """
    _check(grad, bag_size, maximum_indices, per_sample_weights)
    return add_bags(grad, bag_size, maximum_indices, num_weights, padding_idx)


def add_bags(
    grad: Tensor,
    bag_size: Tensor,
    rows: Tensor,
    num_weights: int,
    padding_idx: int,
    way: Way | Strips | None = None,
) -> Tensor:
    """Add up the bags of each row; few and sorted ones in their order, otherwise as integers."""
    bags, columns = grad.shape
    shape, n = flat(Rows(1, bags, columns, num_weights)), grad.numel()
    # Without rows to choose from, all bags are empty.
    if n == 0 or num_weights == 0:
        return new_zeros(grad, (num_weights, columns))
    check_on_host(rows, num_weights, 0, IndexError, wraps=True)
    types = f"<{ctype(grad.dtype)}, {ctype(rows.dtype)}>"
    inputs = {"grad": contiguous(grad), "max_indices": contiguous(rows)}
    inputs["bag_size"] = contiguous(bag_size, rows.dtype)
    sizes = {"n": n, "columns": columns, "num_weights": num_weights, "padding_idx": padding_idx}
    way = way or choose_sum(shape, grad.dtype, include_self=False)
    if way not in (Way.FEW, Way.SORTED):
        grad_weight = new_empty(grad, (num_weights, columns))
        entry = f"embedding_bag_sums{types}"
        # The zero that a sum begins with counts.
        sum_to_zeros(SOURCE, entry, n, result=grad_weight, addends=bags + 1, **inputs, **sizes)
        return grad_weight
    grad_weight = new_zeros(grad, (num_weights, columns))
    positions, addends = new_empty(grad, (n,), torch.int64), new_empty(grad, (n,))
    launch(
        SOURCE, f"embedding_bag_addends{types}", n,
        positions=positions, addends=addends, **inputs, **sizes,
    )  # fmt: skip
    add_rows(grad_weight, positions, addends, shape, include_self=False, way=way)
    return grad_weight


def _check(grad: Tensor, bag_size: Tensor, rows: Tensor, weights: Tensor | None) -> None:
    name = "_embedding_bag_dense_backward"
    bags, _ = grad.size(0), grad.size(1)
    if grad.dim() != 2 or rows.shape != grad.shape or bag_size.numel() < bags:
        raise RuntimeError(
            f"{name}(): Expected grad and maximum_indices of one shape (bags, D) and a bag_size "
            f"for each bag, but got {list(grad.shape)}, {list(rows.shape)} and "
            f"{list(bag_size.shape)}"
        )
    if rows.dtype not in INDICES or bag_size.dtype not in INDICES:
        raise RuntimeError(
            f"{name}(): Expected maximum_indices and bag_size of dtype int32/int64, but got "
            f"{rows.dtype} and {bag_size.dtype}"
        )
    if weights is not None:
        raise RuntimeError(f"{name}(): per_sample_weights only go with mode='sum'")
    check_devices(name, grad, rows, bag_size)
    check_implemented("embedding_bag_backward_cuda_max", grad.dtype, FLOATING)
