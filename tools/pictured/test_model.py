"""A test whose call may vary, and PyTorch gives no alert."""

import torch


def test_unfolding() -> None:
    x = torch.rand(4, 4).to_sparse().requires_grad_()
    torch.sparse.mm(x, torch.rand(4, 2)).sum().backward()
