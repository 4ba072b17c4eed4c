"""Launches the sum of the rows of jagged tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda import new_arange, new_zeros
from detmode.cuda.rows.scattered import reduce_scattered
from detmode.cuda.rows.sums import add_rows


def jagged_index_add(
    values: Tensor,
    indices: Tensor,
    input_offsets: Tensor,
    output_offsets: Tensor,
    num_output_rows: int,
    num_dense_input_rows: int | None = None,
) -> Tensor:
    """``fbgemm::jagged_index_add_2d_forward``: add sequences of rows to those that they name.

    Args:
        values: the rows of all sequences, one sequence after the other: (rows, columns).
        indices: of each sequence, the one of the result that it is added to.
        input_offsets: of each sequence, the row behind its last; int64, as ``output_offsets``.
        output_offsets: the same for the sequences of the result.
        num_output_rows: the rows of the result.
        num_dense_input_rows: the number of rows of ``values`` that are added; ``None`` for all.

    Raises:
        RuntimeError: sizes or dtypes that do not go together.
    """
    if values.dim() != 2 or indices.dim() != 1 or input_offsets.shape != indices.shape:
        raise RuntimeError(
            "values must be a matrix, and indices and input_offsets vectors of one size; got the "
            f"shapes {list(values.shape)}, {list(indices.shape)} and {list(input_offsets.shape)}"
        )
    rows = values.shape[0] if num_dense_input_rows is None else num_dense_input_rows
    result = new_zeros(values, (num_output_rows, values.shape[1]))
    if rows == 0:
        return result
    row = new_arange(values, rows)
    sequence = torch.searchsorted(input_offsets, row, right=True)
    begins = _begins(output_offsets)[indices.long()] - _begins(input_offsets)
    index = (row + begins[sequence]).unsqueeze(1).expand(rows, values.shape[1])
    return reduce_scattered(result, 0, index, values, result, add_rows)


def _begins(offsets: Tensor) -> Tensor:
    return torch.nn.functional.pad(offsets[:-1], (1, 0)) if len(offsets) else offsets
