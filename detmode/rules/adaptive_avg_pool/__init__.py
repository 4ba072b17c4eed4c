"""Backward of adaptive average pooling: ``_adaptive_avg_pool2d_backward`` and ``_3d_``.

``nn.AdaptiveAvgPool1d`` and ``nn.AdaptiveAvgPool2d`` both call the 2-D operator, and so does
``F.interpolate(mode="area")`` for 3-D and 4-D input; 5-D input calls the 3-D one. An output size of
1 in every dimension is a mean and calls neither.

## What varies

Windows overlap wherever an input size is not a multiple of the output size. ATen's CUDA kernel
assigns each window to one thread, which adds its share to the elements of ``grad_input`` with
atomics; where windows overlap, the order of those additions varies between runs. PyTorch alerts on
every call, even where no windows overlap.

## What happens instead

One thread owns an element of ``grad_input``. Integer arithmetic finds the windows that cover it,
and it adds their shares in row-major order, in float for float16 and bfloat16, each operation
rounded explicitly, so any GPU gives the same bits. The rounding error of the sum is tracked and
added at the end, so the error is that of one rounding, where ATen divides once for each dimension
and rounds each sum. ``grad_input`` is channels last where ATen gives that (2-D only), else
contiguous.

## Cost

``grad_output`` is read and ``grad_input`` written once, which is the floor: a pyramid's bins 2, 3
and 6 over 2048 float32 channels of 60x60 write 29.5 MB each for an image and read at most 0.3 MB.
Windows that overlap read ``grad_output`` again, from cache. ATen's contiguous kernels fill
``grad_input`` with zeros and add into it: two writes and a read. A ``grad_output`` in another
memory format is copied first.

In total, 1.0 times the floor.

## Limits

``adaptive_avg_pool3d_backward.grad_input`` is an ``out`` operator without a functional form, so it
is listed by its overload; its result is computed separately and copied into ``grad_input``. ATen
reads beyond ``grad_output`` when its batch or channels differ from those of ``self``; here that
raises ``RuntimeError``.
"""

from detmode.rules.adaptive_avg_pool import launch
from detmode.table.chain import RowFields, chain, on_cuda
from detmode.table.rule import Substitute

_GATHERED = RowFields(
    **on_cuda(launch.adaptive_avg_pool3d_backward, traffic=1.0),
    because="overlapping windows add to one element by atomicAdd, in the order they come",
)
_ELSEWHERE = "on other devices PyTorch does not alert; the CPU adds a plane's windows in order"

RULES = (
    *chain(
        "aten::_adaptive_avg_pool2d_backward",
        _GATHERED
        | RowFields(
            action=Substitute(launch.adaptive_avg_pool2d_backward, traffic=1.0),
            alert="adaptive_avg_pool2d_backward_cuda",
        ),
        otherwise=_ELSEWHERE,
    ),
    *chain(
        "aten::_adaptive_avg_pool3d_backward",
        _GATHERED | RowFields(alert="adaptive_avg_pool3d_backward_cuda"),
        otherwise=_ELSEWHERE,
    ),
    *chain(
        "aten::adaptive_avg_pool3d_backward.grad_input",
        _GATHERED | RowFields(alert="adaptive_avg_pool3d_backward_out_cuda"),
        otherwise=_ELSEWHERE,
    ),
)
