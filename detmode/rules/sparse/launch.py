"""Launcher of the product under ``torch.sparse.mm`` and ``torch.sparse.addmm``."""

from __future__ import annotations

from torch import Tensor

from detmode.cuda.rows.sparse_products import sparse_product


def sparse_addmm(
    self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: complex = 1, alpha: complex = 1
) -> Tensor:
    """``aten::_sparse_addmm``, one factor of which is a sparse matrix (COO, CSR or CSC).

    Raises:
        IndexError, RuntimeError: as ATen.
    """
    return sparse_product("_sparse_addmm", mat1, mat2, self, beta, alpha)
