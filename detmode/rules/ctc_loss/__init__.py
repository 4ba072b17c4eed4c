"""Backward of the connectionist temporal classification loss: ``_ctc_loss_backward``.

``F.ctc_loss`` and ``nn.CTCLoss`` call it with lengths as lists or as tensors.

## What varies

A target label that occurs several times in a sequence collects one gradient for each position; the
CUDA kernel adds them with a float ``atomicAdd`` where the batch or the alphabet is large. PyTorch
alerts on every call. The forward, ``_ctc_loss``, adds nothing atomically and does not vary.

## What happens instead

The positions of each target are sorted by label, by counting. One block for each sample then walks
back in time, with a thread for each state (labels, and the blanks between them), and leaves the
share of the likelihood that passes through each state at each time. One thread owns one element of
the gradient and adds the shares of its label's positions in ascending order.

The walk stores probabilities as a mantissa and an exponent, while ATen stores their logarithms, so
its errors are relative to a probability and do not grow with the loss. ``exp`` consists of
explicitly rounded operations, because CUDA's ``expf`` has last bits that depend on the GPU; so any
GPU gives the same bits.

## Cost

With W = 2 S + 1 states for targets of at most S labels, in float32: for each time and sample 4 W
bytes of ``log_alpha`` are read, 4 W of shares written and read again, and 4 C of ``log_probs`` read
and of gradient written, C classes, with 4 C of the labels' index, which come from cache. ATen fills
and writes the backward variables (8 W), reads both variables (8 W), and fills and writes the
gradient (8 C, more where it is large). The walk takes T steps, one after the other, for each 512
states, as in ATen. Memory for the shares, as large as ``log_alpha``, is needed in addition to the
result, as in ATen.

In total, 2.7 times the floor for 32 characters and labels of 200, and hardly more than the floor
for thousands of classes.

## Limits

The operator has float32 and float64 only, as in ATen. Labels that are not a class, and lengths that
do not fit, trap on a GPU, and raise on the host and where lengths are on the CPU; ATen reads beyond
its tensors. Lengths in a tensor on the GPU stay there; ATen copies them to the CPU. An infinite
loss gives NaN, or zero with ``zero_infinity=True``, and a class that no target has and whose
log-probability is -inf gives NaN in a small call and zero in a large one, all as in ATen. A finite
log-probability beyond 2^40, on either side of zero, counts as 2^40. Sorting compares each label
with all others of its target. There is no double backward, as in ATen. cuDNN's loss
(``_cudnn_ctc_loss``: int32 targets on the CPU, blank 0, input lengths all equal) is a separate
family.
"""

from detmode.rules.ctc_loss import launch
from detmode.table.chain import chain, on_cuda

RULES = chain(
    ("aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor"),
    on_cuda(launch.ctc_loss_backward, traffic=2.7),
    alert="ctc_loss_backward_gpu",
    because="positions with the same label add their gradients with a float atomicAdd",
    otherwise="the CPU kernel walks the positions of a sequence in order",
)
