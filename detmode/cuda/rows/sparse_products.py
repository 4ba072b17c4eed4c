"""Products of a sparse matrix and a dense one, added up row by row in a fixed order.

The entries of a row are added in the order in which they are stored, by pieces of 64 entries of the
whole matrix and then the pieces' carries, as :mod:`detmode.cuda.rows.sums` adds sorted rows.
Entries that are not stored row by row are sorted first, stably.
"""

from __future__ import annotations

from collections import namedtuple

import torch
from torch import Tensor

from detmode.cuda import Source, contiguous, ctype, launch, new_empty, new_zeros, parts_of
from detmode.cuda.checks import check_devices, check_factor, check_scalar_type
from detmode.cuda.dtypes import COMPLEX, FLOATING
from detmode.cuda.elements import in_memory
from detmode.cuda.rows.shapes import KEYS, Rows
from detmode.cuda.rows.sort import sorted_positions
from detmode.cuda.rows.source import widths
from detmode.cuda.rows.sums import Scaling, new_carries, pieces_of, reduce_carries

SOURCE = Source(
    __file__,
    "sparse_products.cu",
    entries=tuple(
        f"sparse_rows<{ctype(dtype)}, {width}, {key}>"
        for dtype in FLOATING + COMPLEX
        for width in widths(dtype)
        for key in KEYS
    ),
)


SparseShape = namedtuple("SparseShape", "entries rows size inner")
"""The struct of ``sparse_products.cu``: the entries, and the sizes of both matrices."""


def sparse_product(
    name: str,
    mat1: Tensor,
    mat2: Tensor,
    self: Tensor | None = None,
    beta: complex = 0,
    alpha: complex = 1,
) -> Tensor:
    """Return ``beta * self + alpha * (mat1 @ mat2)``, of which one factor is sparse.

    Args:
        name: the operator, for messages.
        mat1: (m, k), a sparse matrix (COO, CSR or CSC, of scalars) or a strided one.
        mat2: (k, n), the other of the two.
        self: strided, expands to (m, n); not read where ``beta`` is 0.
        beta: its factor.
        alpha: that of the product.

    Returns:
        (m, n), contiguous; where ``mat2`` is COO, its transpose is.

    Raises:
        IndexError, RuntimeError: shapes, dtypes, devices or factors that do not go together, as in
            ATen.
    """
    _check(name, mat1, mat2, self)
    alpha, beta = (_factor(factor, mat1.dtype) for factor in (alpha, beta))
    shape = mat1.shape[0], mat2.shape[1]
    if self is not None:
        self = self.expand(shape)
    if mat1.layout is not torch.strided:
        return _product(mat1, mat2, self, beta, alpha)
    turned = None if self is None else self.t()
    result = _product(mat2, mat1.t(), turned, beta, alpha, is_turned=True).t()
    return result if mat2.layout is torch.sparse_coo else contiguous(result)


def _product(
    sparse: Tensor,
    dense: Tensor,
    self: Tensor | None,
    beta: complex,
    alpha: complex,
    *,
    is_turned: bool = False,
) -> Tensor:
    shape = sparse.shape[int(is_turned)], dense.shape[1]
    if self is None or beta == 0:
        out = new_zeros(dense, shape)
    else:
        # To a row without entries ATen adds 0.0, but where the matrix is COO or has none at all.
        is_kept = sparse.layout is torch.sparse_coo or sparse._nnz() == 0
        out = new_empty(dense, shape)
        if is_kept:
            torch.mul(self, beta, out=out)
        else:
            torch.add(new_zeros(dense, ()), self, alpha=beta, out=out)
    if sparse._nnz() and out.numel():
        entries = _entries(sparse, is_turned=is_turned)
        _add(*entries, in_memory(dense), out, alpha, include_self=beta != 0)
    return out


def _entries(sparse: Tensor, *, is_turned: bool) -> tuple[Tensor, Tensor, Tensor, bool]:
    """The rows and columns of the entries, int64, their values, and if they are row by row."""
    # Not of a matrix that ATen has turned: it copies what is in COO.
    if sparse.layout is torch.sparse_coo:
        first, second = contiguous(sparse._indices())
        values, by_row = sparse._values(), sparse.is_coalesced() and not is_turned
        rows, columns = (second, first) if is_turned else (first, second)
    else:
        if sparse.layout is torch.sparse_csr:
            ends, others = sparse.crow_indices(), sparse.col_indices()
        else:
            ends, others = sparse.ccol_indices(), sparse.row_indices()
        places = new_empty(sparse, (2, sparse._nnz()), torch.int64)
        compressed, plain = torch._convert_indices_from_csr_to_coo(ends, others, out=places)
        values, by_row = sparse.values(), (sparse.layout is torch.sparse_csr) is not is_turned
        rows, columns = (compressed, plain) if by_row else (plain, compressed)
    return rows, columns, in_memory(values), by_row


def _add(
    rows: Tensor,
    columns: Tensor,
    values: Tensor,
    are_sorted: bool,
    dense: Tensor,
    out: Tensor,
    alpha: complex,
    *,
    include_self: bool,
) -> None:
    """Add the product with ``dense`` to ``out``, or to zeros; both are contiguous."""
    shape = Rows(1, rows.numel(), dense.shape[1], out.shape[0])
    keys, order = (rows, None) if are_sorted else sorted_positions(rows, shape.size)
    width = widths(dense.dtype)[-1]
    if dense.data_ptr() % 8 or shape.inner % width:
        width = 1
    components, words = parts_of(dense.dtype)
    carries = new_carries(out, shape, components * words)
    types = f"{width}, {ctype(keys.dtype)}"
    launch(
        SOURCE, f"sparse_rows<{ctype(dense.dtype)}, {types}>",
        pieces_of(shape.rows) * (shape.inner // width),
        keys=keys, order=order, columns=columns, values=values, dense=dense, out=out,
        carries=carries, shape=SparseShape(shape.rows, shape.size, *dense.shape),
        include_self=include_self,
        alpha=Scaling(alpha != 1, float(alpha.real), float(alpha.imag)),
    )  # fmt: skip
    reduce_carries(
        f"row_sum<{ctype(dense.dtype)}>, {types}", width, shape,
        keys=keys, out=out, carries=carries, include_self=include_self,
    )  # fmt: skip


def _check(name: str, mat1: Tensor, mat2: Tensor, self: Tensor | None) -> None:
    k = mat1.size(-1)
    mat2.size(1)
    if mat2.layout is torch.sparse_coo:
        if self is not None:
            raise RuntimeError(f"{name}(): a sparse COO matrix can only be the first factor")
        mat1.size(-2)
    if mat1.dim() != 2 or mat2.dim() != 2 or mat2.shape[0] != k:
        raise RuntimeError(
            f"{name}(): mat1 and mat2 shapes cannot be multiplied ({list(mat1.shape)} and "
            f"{list(mat2.shape)})"
        )
    tensors = [tensor for tensor in (mat1, mat2, self) if tensor is not None]
    check_scalar_type(mat1.dtype, *(tensor.dtype for tensor in tensors))
    check_devices(name, *tensors)
    if self is not None and self.layout is not torch.strided:
        raise RuntimeError(f"{name}(): expected a strided tensor to add to, got {self.layout}")


def _factor(value: complex, dtype: torch.dtype) -> complex:
    """Alpha or beta, real where the dtype is."""
    check_factor(value, dtype)
    return value if dtype.is_complex else value.real
