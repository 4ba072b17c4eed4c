"""Sparse matrices that differ in one thing each, for what remembers calls."""

import warnings

import torch
from torch import Tensor


def sparse_matrices() -> dict[str, Tensor]:
    """Matrices (4, 4), of which those with the same number of entries have like components.

    What is coalesced comes twice, so that it is recorded before what is not.
    """
    ends, others = torch.tensor([0, 2, 2, 3, 4]), torch.tensor([1, 3, 0, 2])
    values = torch.tensor([0.5, -1.0, 2.0, 0.25])
    sizes = (4, 4)
    # So many that several threads add them.
    by_row = torch.stack([torch.arange(200) // 50, torch.arange(200) % 4])
    many = torch.arange(200.0)
    shifted = torch.empty(5)[1:].copy_(values)
    csr, coo = torch.sparse_csr_tensor, torch.sparse_coo_tensor
    with warnings.catch_warnings():
        # PyTorch tells once of its support of such layouts, and of what it does not check.
        warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")
        return {
            "CSR": csr(ends, others, values, sizes),
            "CSC": torch.sparse_csc_tensor(ends, others, values, sizes),
            "CSR, int32": csr(ends.int(), others.int(), values, sizes),
            "CSR, shifted": csr(ends, others, shifted, sizes),
            "CSR, float64": csr(ends, others, values.double(), sizes),
            "CSR, gradients": csr(ends, others, values, sizes, requires_grad=True),
            "CSR, three": csr(ends.clamp(max=3), others[:3], values[:3], sizes),
            "COO, strides": coo(by_row.t().contiguous().t(), many, sizes),
            "COO, coalesced": coo(by_row, many, sizes, is_coalesced=True),
            "COO, coalesced, again": coo(by_row, many, sizes, is_coalesced=True),
            "COO": coo(by_row.flip(0), many, sizes),
            "COO, nothing": coo(by_row[:, :0], many[:0], sizes),
        }
