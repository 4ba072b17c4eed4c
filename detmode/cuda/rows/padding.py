"""Launches the backward kernel that replication and reflection padding share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import add, ge
from typing import NamedTuple

from torch import Tensor

from detmode.cuda import Source, contiguous, ctype, launch, new_empty
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


class _PaddedAxis(NamedTuple):
    """The struct of ``padding.cu``: inputs, outputs, and outputs before the first input."""

    size: int
    out: int
    padding: int


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
    check_scalar_type(self.dtype, grad_output.dtype)
    check_implemented(where, self.dtype, DTYPES)
    reflect = where.startswith("reflection")
    shape, out_shape = tuple(self.shape), tuple(grad_output.shape)
    _check(where, out_shape, shape, padding, spatial, reflect)
    sizes = zip(reversed(shape), reversed(out_shape), padding[::2])
    w, h, d = *(_PaddedAxis(*axis) for axis in sizes), *(_PaddedAxis(1, 1, 0),) * (3 - spatial)
    planes, positions = prod(shape[:-spatial]), prod(shape[-spatial:])
    share = share or choose_share(planes, self.numel(), grad_output.numel())
    entry = f"{ctype(self.dtype)}, {str(reflect).lower()}, {share.per_thread}, {share.counter}"
    grad_input = new_empty(self, shape)
    launch(
        SOURCE, f"pad_backward<{entry}>", -(-planes // share.per_thread) * positions,
        grad_output=contiguous(grad_output), grad_input=grad_input, planes=planes, d=d, h=h, w=w,
    )  # fmt: skip
    return grad_input


def _check(
    where: str,
    out_shape: tuple[int, ...],
    shape: tuple[int, ...],
    padding: Sequence[int],
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
