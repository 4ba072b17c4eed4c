"""The elements of a tensor as those read them who read its memory: kernels, digests and files."""

from __future__ import annotations

from torch import Tensor


def in_memory(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory holds its elements in row-major order.

    PyTorch may leave conjugation and negation to the reader: the dispatcher hands conjugate factors
    of products to their kernels, and knows nothing of the values inside a sparse matrix.
    """
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def plain(tensor: Tensor) -> Tensor:
    """Return the elements in row-major order: one-dimensional, contiguous, as :func:`in_memory`."""
    found = in_memory(tensor)
    # The stride of a single element may be anything, but only stride 1 can be viewed as bytes.
    return found.as_strided((found.numel(),), (1,))
