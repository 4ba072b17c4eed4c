"""The elements of a tensor as those read them who read its memory: kernels, digests and files."""

from __future__ import annotations

import torch
from torch import Tensor


def in_memory(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory holds its elements in row-major order.

    PyTorch may leave conjugation and negation to the reader: the dispatcher hands conjugate factors
    of products to their kernels, and knows nothing of the values inside a sparse matrix. A zero
    tensor of forward-mode AD has no memory at all.
    """
    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def once(tensor: Tensor) -> Tensor:
    """Return a strided tensor with each of its repeated elements once.

    Along a dimension of stride 0, as ``expand`` makes it, all elements are in one place: of a mask
    of one byte there may be 30 GB.
    """
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def plain(tensor: Tensor) -> Tensor:
    """Return the elements in row-major order: one-dimensional, contiguous, as :func:`in_memory`."""
    contiguous = in_memory(tensor)
    # The stride of a single element may be anything, but only stride 1 can be viewed as bytes.
    return contiguous.as_strided((contiguous.numel(),), (1,))
