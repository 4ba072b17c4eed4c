"""Backward of nearest interpolation in 3-D: ``upsample_nearest3d_backward`` and ``_exact3d``.

``F.interpolate`` of 5-D tensors with ``mode="nearest"`` and ``"nearest-exact"``. The 1-D and 2-D
operators never alert.

## What varies

Only on MPS, since PyTorch 2.15: output positions that read one input position add to it atomically,
and PyTorch alerts unless ``grad_output`` is empty. ATen's CUDA kernels assign each element of
``grad_input`` to a thread, which adds the output positions that read it in order.

## What happens instead

PyTorch's error on MPS; the other devices do not vary.

## Cost

None: no other kernel runs.

## Limits

There is no substitute on MPS: the CUDA kernels do not run there.
"""

from detmode.table.chain import chain, on_mps
from detmode.table.conditions import nonempty

RULES = tuple(
    rule
    for prefix, name in (("", "upsample_nearest"), ("_", "upsample_nearest_exact"))
    for rule in chain(
        f"aten::{prefix}{name}3d_backward",
        on_mps(
            f"{name}_3d_backward",
            "output positions that read one input position add to it atomically",
            when=nonempty("grad_output"),
        ),
        otherwise="on CUDA a thread owns an element of grad_input; the CPU adds in order",
    )
)
