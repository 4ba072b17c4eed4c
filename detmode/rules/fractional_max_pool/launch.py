"""Launchers of the backward of fractional max pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from detmode.cuda import Source, index_ctype, launch
from detmode.cuda.checks import check_implemented, check_scalar_type
from detmode.cuda.rows.chosen_windows import check, entries, gather_chosen
from detmode.cuda.rows.positions import check_on_host
from detmode.table.conditions import FLOATING

KERNEL = "fractional_max_pool_backward"
STRAYS = tuple(f"fractional_max_pool_strays<{index}>" for index in ("int32_t", "int64_t"))
SOURCE = Source(__file__, "kernels.cu", entries=(*STRAYS, *entries(KERNEL)))


def fractional_max_pool2d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: Tensor,
) -> Tensor:
    """The gradient of ``fractional_max_pool2d`` with respect to its input.

    Args:
        grad_output: (N, C, H_out, W_out) or (C, H_out, W_out), floating point.
        self: (N, C, H, W) or (C, H, W); its shape and dtype are read.
        kernel_size: of a region, to look for its element; one that is not the forward's makes
            this slow, not wrong.
        output_size: (H_out, W_out).
        indices: int64, like ``grad_output``: for each region the position in (H, W) it chose.

    Returns:
        A contiguous tensor of the shape and dtype of ``self``.

    Raises:
        IndexError: ``self`` has too few dimensions.
        NotImplementedError: a dtype that is not floating point.
        RuntimeError: shapes, dtypes or devices that do not go together; on the CPU also an index
            out of range.
    """
    return _gather(2, grad_output, self, kernel_size, output_size, indices)


def fractional_max_pool3d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: Tensor,
) -> Tensor:
    """The gradient of ``fractional_max_pool3d`` with respect to its input.

    As :func:`fractional_max_pool2d_backward`, with (T, H, W) in the place of (H, W).
    """
    return _gather(3, grad_output, self, kernel_size, output_size, indices)


def _gather(
    n: int,
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: Tensor,
) -> Tensor:
    _check(f"fractional_max_pool{n}d_backward", n, grad_output, self, output_size, indices)
    if self.numel() == 0:
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)
    check_on_host(indices, self.shape[-n:].numel(), self.dim() - n, RuntimeError)
    # ATen does not read the kernel size, so it may be anything.
    given = kernel_size if len(kernel_size) >= n else (1,) * n
    regions = (min(max(int(k), 1), size) for k, size in zip(given, self.shape[-n:]))
    kernel = (*(1,) * (3 - n), *regions)
    indices = indices.contiguous()
    strays = find_strays(n, self.shape, kernel, indices)
    return gather_chosen(
        SOURCE,
        KERNEL,
        grad_output,
        self,
        indices,
        n,
        torch.contiguous_format,
        *kernel,
        strays,
        counts=_counts(n, self.shape, kernel, indices.shape),
    )


def _counts(
    n: int, input_size: Sequence[int], kernel: Sequence[int], output_size: Sequence[int]
) -> list[int]:
    """The kernels multiply twice a position of the input by the regions of its axis."""
    axes = zip(input_size[-n:], kernel[-n:], output_size[-n:])
    return [2 * (size + k + size // 2**19 + 4) * out for size, k, out in axes]


def find_strays(
    n: int, input_size: Sequence[int], kernel: Sequence[int], indices: Tensor
) -> Tensor:
    """One int64: not zero if a region chose an element that no region at its place can hold."""
    strays = torch.zeros(1, dtype=torch.int64, device=indices.device)
    missing = (1,) * (3 - n)
    counts = _counts(n, input_size, kernel, indices.shape)
    index = index_ctype(math.prod(input_size), indices.numel(), *counts)
    launch(
        SOURCE,
        f"fractional_max_pool_strays<{index}>",
        indices.numel(),
        indices,
        strays,
        indices.numel(),
        *missing,
        *input_size[-n:],
        *missing,
        *indices.shape[-n:],
        *kernel,
    )
    return strays


def _check(
    name: str,
    n: int,
    grad_output: Tensor,
    self: Tensor,
    output_size: Sequence[int],
    indices: Tensor,
) -> None:
    if self.dim() <= n:
        raise IndexError(f"{name}(): Expected {n + 1}D or {n + 2}D input, got {list(self.shape)}")
    expected = [*self.shape[:-n], *output_size[:n]]
    if len(output_size) < n or list(grad_output.shape) != expected:
        raise RuntimeError(
            f"{name}(): gradOutput sizes unexpected: got {list(grad_output.shape)} for input "
            f"{list(self.shape)} and output_size {list(output_size)}"
        )
    check(name, grad_output, self, indices, n)
    check_scalar_type(self.dtype, grad_output)
    check_implemented(f"{name}_out_frame", self, FLOATING)
