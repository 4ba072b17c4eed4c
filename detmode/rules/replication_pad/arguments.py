"""Arguments and rejected inputs for the samples of replication and reflection padding."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from detmode.table.samples import Maker, Sample

INF, NAN = float("inf"), float("nan")
SIZES = (5, 4, 6)


def padded(
    m: Maker, shape: tuple[int, ...], padding: tuple[int, ...], last: bool = False
) -> dict[str, Any]:
    """Any shape and padding; ``last``: the gradient is channels last."""
    result = list(shape)
    for axis in range(len(padding) // 2):
        result[-1 - axis] += padding[2 * axis] + padding[2 * axis + 1]
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    memory_format = formats[len(shape)] if last else torch.contiguous_format
    return {
        "grad_output": m.normal(*result).contiguous(memory_format=memory_format),
        "self": m.normal(*shape),
        "padding": list(padding),
    }


def strided(m: Maker, shape: tuple[int, ...], padding: tuple[int, ...]) -> dict[str, Any]:
    """The same with both tensors stored with the first and the last dimension exchanged."""
    call = padded(m, shape, padding)
    for name in ("grad_output", "self"):
        call[name] = call[name].transpose(0, -1).contiguous().transpose(0, -1)
    return call


def special(m: Maker, n: int) -> dict[str, Any]:
    """A padding of ``n`` dimensions with values that not every sum keeps."""
    call = padded(m, (2, 3, *SIZES[:n]), (3, 2) * n)
    values = m.tensor([1.0, NAN, -0.0, 2.0, INF, -INF, 1e-40, 6e-8, -0.0, -0.0, 3e38, 3e38, 3.0])
    call["grad_output"].view(-1)[:: 60 // len(values)][: len(values)] = values
    return call


def changed(m: Maker, n: int, **changes: Any) -> dict[str, Any]:
    """A padding of ``n`` dimensions with some arguments replaced."""
    return {**padded(m, (2, 3, *SIZES[:n]), (2, 1) * n), **changes}


def errors(name: str, n: int) -> tuple[Sample, ...]:
    """Return samples that ATen rejects for ``n`` dimensions.

    ``name`` is "replication_pad" or "reflection_pad".
    """
    op = f"aten::{name}{n}d_backward"

    def mixed(m: Maker) -> dict[str, Any]:
        return changed(m, n, self=m.normal(2, 3, *SIZES[:n], dtype=torch.float64))

    return (
        Sample(name="wrong_shape", op=op, make=lambda m: changed(m, n, padding=[2, 2] * n)),
        Sample(name="integers", op=op, make=partial(changed, n=n), dtypes=(torch.int64,)),
        Sample(name="mixed_dtypes", op=op, make=mixed),
    )


def much_padding(name: str, n: int) -> Sample:
    """A padding of one number too many, which ATen rejects."""
    return Sample(
        name="much_padding",
        op=f"aten::{name}{n}d_backward",
        make=lambda m: changed(m, n, padding=[*(2, 1) * n, 0]),
    )
