"""Counts: ``histc`` and ``bincount``.

## What varies

``histc`` of floating-point values counts in floats, and ``bincount`` with weights adds them, both
with a float ``atomicAdd`` on CUDA. Counts of integers below the dtype's precision are exact in any
order; PyTorch alerts anyway.

## What happens instead

``histc`` of float32 and float64: elements are counted as integers, in shared memory where the bins
fit, and the counts are rounded to the dtype once. The bin of an element is ATen's CUDA kernel's:
``(element - min) * bins / (max - min)``, each operation rounded explicitly in the dtype; what lies
outside ``[min, max]``, and NaN, is left out, and ``max`` belongs to the last bin.

``bincount`` with weights: the weights are added by the launches of the family ``index``: those of
float32, four for each bin or more, exactly except for one rounding, as single elements there;
others by a maximum of exponents per bin and then integers of that scale, or a stable sort where
that moves fewer bytes. Weights of another dtype than float32 become float64, as in ATen.

Both give the same bits on any GPU. ``histc`` of integers and ``bincount`` without weights do not
vary and are called unchanged; where CUDA is simulated, ``histc`` of integers, for which ATen's CPU
kernel is missing, is counted as on CUDA. ``histc`` of bfloat16, which CUDA does not have, gets
PyTorch's own error.

## Cost

``histc``: the floor is ``self`` read once, and that is what is read, with an integer atomic per
element; for each bin 8 bytes of scratch. Up to 12288 bins are counted in shared memory; more go to
global memory, as in ATen. Where ``min == max``, the smallest and the largest element are found
first, so ``self`` is read twice, and the host waits for the GPU once; ATen waits twice.

``bincount``: reads the input three times and the weights twice, and converts an input that is not
int64; 12 bytes of scratch per bin (float64: 20). Where weights are added exactly, the input is read
twice, and a bin has 136 bytes of scratch, of which 8 are used for each 16 exponents. The size of
the result depends on the largest element, so the host waits for the GPU once; ATen waits twice.

In total, ``histc`` moves 1.0 times the floor where it is given a range, else twice that;
``bincount`` of int64 with float32 weights 3.7 times the floor.

The mode turns PyTorch's flag on, and libraries ask for it: with the flag torchmetrics does not call
``bincount`` for its scores and confusion matrices, and compares each element with each bin instead,
which takes 9 bytes for each of these pairs. Counts without weights do not vary: where that is too
much, update the metric outside the block.

## Limits

Counts beyond 2**24 in float32 are the nearest float32; ATen's stop there, because adding 1 no
longer changes them. Where ``max - min`` overflows, so do ATen's bins, and elements may fall outside
its memory; here they fall into the first or last bin. ``histogram`` and ``histogramdd`` run on the
CPU only.
"""

import torch

from detmode.rules.histograms import launch
from detmode.table.chain import chain, on_cuda
from detmode.table.conditions import argument_given, dtype_in

RULES = (
    *chain(
        "aten::histc",
        on_cuda(launch.histc, traffic=1.0, when=dtype_in("self", [torch.float32, torch.float64])),
        alert="_histc_cuda with floating point input",
        because="blocks add their counts, which are floats, with a float atomicAdd",
        otherwise="integer counts are exact, the CPU counts in order, "
        "CUDA has no other float dtype",
    ),
    *chain(
        "aten::bincount",
        on_cuda(launch.bincount, traffic=3.7, when=argument_given("weights")),
        alert="_bincount_cuda",
        because="weights are added with a float atomicAdd",
        otherwise="integer counts are exact in any order, and the CPU counts in order",
    ),
)

ON_HOST = {"aten::histc": launch.histc_of_integers}
"""Stand-ins, where CUDA is simulated, for kernels that CUDA has and the CPU has not."""
