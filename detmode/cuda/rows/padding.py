"""Launches the backward kernel that replication and reflection padding share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import add, ge

import torch
from torch import Tensor

from detmode.cuda import (
    Launch,
    Source,
    UnsizedLaunch,
    contiguous,
    ctype,
    new_empty,
    planned,
)
from detmode.cuda.checks import check_implemented, check_scalar_type, named, raises_like_aten
from detmode.cuda.dtypes import COMPLEX, FLOATING
from detmode.cuda.rows.shares import PER_THREAD, Share, choose_share

DTYPES = FLOATING + COMPLEX

SOURCE = Source(
    __file__,
    "padding.cu",
    entries=tuple(
        f"pad_backward<{ctype(dtype)}, {reflect}, {per_thread}, {index}>"
        for dtype in DTYPES
        for reflect in ("false", "true")
        for per_thread in (1, PER_THREAD)
        for index in ("int32_t", "int64_t")
    ),
)


# Of an axis that is absent: its inputs, its outputs, and how many of those are before the first
# input.
_ABSENT = ((1, 1, 0),) * 3


def pad_backward(
    module: str, name: str, spatial: int
) -> Callable[[Tensor, Tensor, Sequence[int]], Tensor]:
    """Make the launcher of a padding's backward, as :func:`gather_backward` says.

    Args:
        module: in which it is defined.
        name: the operator without its number of dimensions: ``"reflection_pad"``.
        spatial: 1, 2 or 3.
    """
    where = f"{name}{spatial}d_backward"

    @raises_like_aten
    def backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
        return gather_backward(where, spatial, grad_output, self, padding)

    doc = f"The gradient of ``{name}{spatial}d`` with respect to its input."
    return named(backward, module, where, doc)


def gather_backward(
    where: str,
    spatial: int,
    grad_output: Tensor,
    self: Tensor,
    padding: Sequence[int],
    share: Share | None = None,
) -> Tensor:
    """The gradient of a padding of the last ``spatial`` dimensions with respect to its input.

    Args:
        where: the operator: ``"reflection_pad1d_backward"``.
        spatial: 1, 2 or 3.
        grad_output: (N, C, W_out), (N, C, H_out, W_out) or (N, C, D_out, H_out, W_out), floating
            point or complex; N may be missing.
        self: (N, C, W), (N, C, H, W) or (N, C, D, H, W), or without N; its shape and dtype are
            read.
        padding: left and right, top and bottom, front and back, as many as there are; negative
            where it crops; of a reflection each less than the size it pads.
        share: of a thread; None for the one that sizes choose.

    Returns:
        A contiguous tensor of the shape and dtype of ``self``.

    Raises:
        RuntimeError: shapes, dtypes, devices or paddings that do not go together.
        NotImplementedError: a dtype that is neither floating point nor complex.
    """
    launch = _plan(
        where, spatial, grad_output.shape, self.shape,
        tuple(padding), grad_output.dtype, self.dtype, share,
    )  # fmt: skip
    grad_input = new_empty(self, self.shape)
    launch(grad_output=contiguous(grad_output), grad_input=grad_input)
    return grad_input


@planned
def _plan(
    where: str,
    spatial: int,
    out_shape: tuple[int, ...],
    shape: tuple[int, ...],
    padding: tuple[int, ...],
    out_dtype: torch.dtype,
    dtype: torch.dtype,
    share: Share | None,
) -> Launch:
    """The launch that still needs its tensors."""
    check_scalar_type(dtype, out_dtype)
    check_implemented(where, dtype, DTYPES)
    # A plain tuple is cut quicker than a torch.Size.
    shape, out_shape = tuple(shape), tuple(out_shape)
    reflect = where.startswith("reflection")
    _check(where, out_shape, shape, padding, spatial, reflect)
    axes = zip(reversed(shape), reversed(out_shape), padding[::2])
    w, h, d = (*axes, *_ABSENT[spatial:])
    planes, positions = prod(shape[:-spatial]), prod(shape[-spatial:])
    share = share or choose_share(planes, planes * positions, prod(out_shape))
    threads = -(-planes // share.per_thread) * positions
    return _unsized(dtype, reflect, *share).of_threads(threads, planes, d, h, w)


@planned
def _unsized(dtype: torch.dtype, reflect: bool, per_thread: int, index: str) -> UnsizedLaunch:
    """The launch without its shape."""
    entry = f"pad_backward<{ctype(dtype)}, {str(reflect).lower()}, {per_thread}, {index}>"
    return UnsizedLaunch(SOURCE, entry, ("planes", "d", "h", "w"))


def _check(
    where: str,
    out_shape: tuple[int, ...],
    shape: tuple[int, ...],
    padding: tuple[int, ...],
    spatial: int,
    reflect: bool,
) -> None:
    if len(padding) != 2 * spatial:
        raise RuntimeError(f"padding size is expected to be {2 * spatial}")
    if len(shape) not in (spatial + 1, spatial + 2):
        raise RuntimeError(
            f"{where}(): Expected self to have {spatial + 1} or {spatial + 2} dimensions, "
            f"but got {len(shape)}"
        )
    # Of the first dimension first, as sizes are.
    before, behind = padding[-2::-2], padding[::-2]
    sizes = shape[-spatial:]
    expected = (*shape[:-spatial], *map(add, map(add, sizes, before), behind))
    if out_shape != expected:
        raise RuntimeError(
            f"{where}(): Expected grad_output to have the shape {list(expected)}, but got "
            f"{list(out_shape)}"
        )
    # Beyond that an image of an image would be needed. ATen does not ask a volume without elements.
    if (
        reflect
        and any(map(ge, map(max, before, behind), sizes))
        and (spatial == 1 or 0 not in shape)
    ):
        raise RuntimeError(
            "Padding size should be less than the corresponding input dimension, but got: padding "
            f"{list(padding)} for input {list(shape)}"
        )
