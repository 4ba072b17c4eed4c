"""A test whose call may vary, and PyTorch gives no alert."""

import torch


def test_product() -> None:
    torch.hspmm(torch.rand(4, 4).to_sparse(), torch.rand(4, 2))
