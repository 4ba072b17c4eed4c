"""Launcher of the backward of embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda import contiguous, new_zeros
from detmode.cuda.checks import raises_like_aten
from detmode.cuda.rows.positions import check_on_host
from detmode.cuda.rows.shapes import Rows
from detmode.cuda.rows.sums import add_rows


@raises_like_aten
def embedding_dense_backward(
    grad_output: Tensor,
    indices: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Tensor:
    """The gradient of an embedding's weight: each row is the sum of what its positions got.

    Args:
        grad_output: (*, D), floating point.
        indices: (*), int32 or int64, in ``[0, num_weights)``.
        num_weights: rows of the weight.
        padding_idx: the row whose gradient stays zero; outside ``[0, num_weights)``, none.
        scale_grad_by_freq: divide each sum by the number of its positions.

    Returns:
        (num_weights, D), contiguous, of the dtype of ``grad_output``.

    Raises:
        IndexError: ``grad_output`` has no dimension; on the CPU also an index out of range, of
            which ATen's kernel takes no notice.
        RuntimeError: shapes, dtypes or devices that do not go together.
    """
    if indices.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(
            "Expected tensor for argument #2 'indices' to have one of the following scalar types: "
            f"Long, Int; but got {indices.dtype} instead (while checking arguments for "
            "embedding_backward)"
        )
    if indices.device != grad_output.device:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but got grad_output on "
            f"{grad_output.device} and indices on {indices.device}"
        )
    shape = Rows(outer=1, rows=indices.numel(), inner=grad_output.size(-1), size=num_weights)
    rows = contiguous(grad_output).view(shape.rows, shape.inner)
    grad_weight = new_zeros(rows, (num_weights, shape.inner))
    if rows.numel() == 0:
        return grad_weight
    check_on_host(indices, num_weights, 0, IndexError)
    index = contiguous(indices, torch.int64).view(-1)
    # An embedding's gradient, scaled by frequency, is the mean over the positions of a row.
    add_rows(grad_weight, index, rows, shape, include_self=False, mean=scale_grad_by_freq)
    if 0 <= padding_idx < num_weights:
        grad_weight[padding_idx].zero_()
    return grad_weight
