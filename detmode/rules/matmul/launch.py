"""Launchers of products of a sparse matrix and a dense one; cuBLAS multiplies dense ones."""

from __future__ import annotations

import torch
from torch import Tensor

from detmode.cuda.rows.sparse_products import sparse_product


def mm(self: Tensor, mat2: Tensor) -> Tensor:
    """``aten::mm``, of which one factor is a sparse matrix (COO, CSR or CSC).

    Raises:
        IndexError, RuntimeError: as ATen.
    """
    return sparse_product("mm", self, mat2)


def addmm(
    self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: complex = 1, alpha: complex = 1
) -> Tensor:
    """``aten::addmm`` of such factors; a COO matrix is the first.

    Raises:
        IndexError, RuntimeError: as ATen.
    """
    return sparse_product("addmm", mat1, mat2, self, beta, alpha)


def mv(self: Tensor, vec: Tensor) -> Tensor:
    """``aten::mv`` of such a matrix.

    Raises:
        RuntimeError: as ATen.
    """
    _check_vector("mv", self, vec)
    return sparse_product("mv", self, vec.unsqueeze(1)).squeeze(1)


def addmv(
    self: Tensor, mat: Tensor, vec: Tensor, *, beta: complex = 1, alpha: complex = 1
) -> Tensor:
    """``aten::addmv`` of a CSR or CSC matrix.

    Raises:
        NotImplementedError, RuntimeError: as ATen.
    """
    if mat.layout is torch.sparse_coo:
        raise NotImplementedError("addmv(): takes no sparse COO matrix; call mv and add, or addmm")
    _check_vector("addmv", mat, vec)
    if self.dim() > 1:
        raise RuntimeError(f"addmv(): expected a vector to add to, got {self.dim()} dimensions")
    column = self.expand(mat.shape[0]).unsqueeze(1)
    return sparse_product("addmv", mat, vec.unsqueeze(1), column, beta, alpha).squeeze(1)


def _check_vector(name: str, mat: Tensor, vec: Tensor) -> None:
    if vec.dim() != 1 or vec.shape[0] != mat.shape[1]:
        raise RuntimeError(
            f"{name}(): expected a vector of {mat.shape[1]} elements, got {list(vec.shape)}"
        )
