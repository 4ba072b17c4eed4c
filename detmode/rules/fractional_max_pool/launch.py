"""Launchers of the backward of fractional max pooling."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from detmode.cuda import Source, contiguous, index_ctype, launch, new_empty, new_zeros
from detmode.cuda.checks import check_implemented, check_scalar_type
from detmode.cuda.rows.chosen_windows import check, entries, gather_chosen, in_axes, plan_chosen
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
        return new_empty(self, self.shape)
    check_on_host(indices, self.shape[-n:].numel(), self.dim() - n, RuntimeError)
    # ATen does not read the kernel size, so it may be anything.
    given = kernel_size if len(kernel_size) >= n else (1,) * n
    regions = (min(max(int(k), 1), size) for k, size in zip(given, self.shape[-n:]))
    kernel = (*(1,) * (3 - n), *regions)
    axes = axes_of(n, self.shape, kernel, indices.shape)
    indices = contiguous(indices)
    strays = find_strays(indices, axes)
    launch = plan_chosen(
        *(SOURCE, KERNEL, self.dtype, self.shape[:-n]),
        *(in_axes(self.shape, n), in_axes(indices.shape, n), True, _most(axes.values())),
        (axes["t"], axes["h"], axes["w"]),
    )
    return gather_chosen(launch, grad_output, self, indices, torch.contiguous_format, strays=strays)


Regions = namedtuple("Regions", "size out kernel")
"""One axis: its inputs, its regions, and the inputs of a region."""


def axes_of(
    n: int, input_size: Sequence[int], kernel: Sequence[int], output_size: Sequence[int]
) -> dict[str, Regions]:
    """By the names of the kernels' parameters; a missing axis has one region of one input."""
    sizes = [(*(1,) * (3 - n), *size[-n:]) for size in (input_size, output_size)]
    return dict(zip("thw", map(Regions, *sizes, kernel)))


def _most(axes: Iterable[Regions]) -> int:
    """The kernels multiply twice a position of the input by the regions of its axis."""
    most: int = max(2 * (size + kernel + size // 2**19 + 4) * out for size, out, kernel in axes)
    return most


def find_strays(indices: Tensor, axes: dict[str, Regions]) -> Tensor:
    """One int64: not zero if a region chose an element that no region at its place can hold."""
    strays = new_zeros(indices, (1,), torch.int64)
    elements = math.prod(axis.size for axis in axes.values())
    index = index_ctype(elements, indices.numel(), _most(axes.values()))
    n = indices.numel()
    entry = f"fractional_max_pool_strays<{index}>"
    launch(SOURCE, entry, n, indices=indices, strays=strays, n=n, **axes)
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
    check_scalar_type(self.dtype, grad_output.dtype)
    check_implemented(f"{name}_out_frame", self.dtype, FLOATING)
