"""Launches the backward kernels of the CTC loss."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence

import torch
from torch import Tensor

from detmode.cuda import contiguous, ctype, launch, launch_blocks, new_empty, new_full
from detmode.cuda.checks import raises_like_aten
from detmode.rules.ctc_loss.arguments import SOURCE, check, lengths_of

THREADS = 512
"""Threads of a block at most, one for each state of a sequence."""


LabelLayout = namedtuple("LabelLayout", "row step total concatenated")
"""The places of the labels: strides, their number, and whether they are all in one dimension."""
CtcShape = namedtuple(
    "CtcShape", "times samples classes longest blank time_stride sample_stride class_stride"
)
"""The sizes and strides of ``log_probs``, the longest target, and the class between labels."""


def choose_threads(longest: int) -> int:
    """Choose the threads of a sample's block, one for each state, or for several by turns."""
    return min(THREADS, -(-(2 * longest + 1) // 32) * 32)


def is_large(times: int, samples: int, classes: int) -> bool:
    """Return whether ATen's CUDA kernels leave classes without labels unchanged."""
    return 2 * times + 24 * samples // 10 + 2 * classes // 10 > 450


@raises_like_aten
def ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int] | Tensor,
    target_lengths: Sequence[int] | Tensor,
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    """The gradient of ``_ctc_loss`` with respect to ``log_probs``.

    Args:
        grad: (N,), the gradient of each sample's loss.
        log_probs: (T, N, C), float32 or float64.
        targets: (N, S), padded, or all labels in one dimension; int32 or int64.
        input_lengths: N lengths, at most T, a list or a tensor of integers. A tensor on the device
            of ``log_probs`` stays there; ATen copies it to the CPU.
        target_lengths: N lengths, at most S, a list or a tensor of integers.
        neg_log_likelihood: (N,), from the forward operator.
        log_alpha: (N, T, 2 S + 1), from the forward operator, S the longest target.
        blank: the class between labels.
        zero_infinity: samples whose loss is infinite have the gradient zero.

    Returns:
        (T, N, C), contiguous: ``(exp(log_probs) - the class's share of the likelihood) * grad``,
        and zero from a sample's input length on.

    Raises:
        RuntimeError: shapes, dtypes, devices, or lengths on the CPU that do not go together. What
            is wrong with labels, and with lengths on a GPU, is a device-side assert.
        NotImplementedError: a dtype that is neither float32 nor float64.
    """
    check(grad, log_probs, targets, neg_log_likelihood, log_alpha, blank)
    times, samples, classes = log_probs.shape
    longest = log_alpha.shape[2] // 2
    concatenated = targets.dim() == 1
    total = targets.numel() if concatenated else None
    grad_input = new_empty(log_probs, log_probs.shape)
    inputs = lengths_of("input_lengths", input_lengths, log_probs, times)
    labels = lengths_of("target_lengths", target_lengths, log_probs, longest, total)
    if grad_input.numel() == 0:
        return grad_input
    nll = contiguous(neg_log_likelihood)
    row = 0 if concatenated else targets.stride(0)
    where = LabelLayout(row, targets.stride(-1), targets.numel(), concatenated)
    shape = CtcShape(times, samples, classes, longest, blank, *log_probs.stride())
    if targets.numel() == 0:
        # Never read, but a kernel's argument.
        targets = new_empty(targets, (1,))
    order, ordered, runs = _sorted(targets, labels, shape, where)
    posteriors = new_empty(log_alpha, log_alpha.shape)
    edges = (samples, 2, times, 2)
    launch_blocks(
        SOURCE, f"ctc_posteriors<{ctype(log_probs.dtype)}, {ctype(targets.dtype)}>", samples,
        choose_threads(longest),
        log_probs=log_probs, targets=targets, input_lengths=inputs, target_lengths=labels,
        neg_log_likelihood=nll, log_alpha=contiguous(log_alpha), posteriors=posteriors,
        edge_mantissas=new_empty(log_probs, edges),
        edge_exponents=new_empty(log_probs, edges, torch.int64), shape=shape, labels=where,
    )  # fmt: skip
    launch(
        SOURCE, f"ctc_gradient<{ctype(log_probs.dtype)}>", grad_input.numel(),
        grad=grad, log_probs=log_probs, input_lengths=inputs, target_lengths=labels,
        neg_log_likelihood=nll, posteriors=posteriors, order=order, sorted=ordered, runs=runs,
        grad_input=grad_input, shape=shape, zero_infinity=zero_infinity,
        large=is_large(times, samples, classes), grad_stride=grad.stride(0),
    )  # fmt: skip
    return grad_input


def _sorted(
    targets: Tensor, lengths: Tensor, shape: CtcShape, where: LabelLayout
) -> tuple[Tensor, Tensor, Tensor]:
    """The positions of each sample's labels by class, their classes, where a class begins."""
    order = new_empty(targets, (shape.samples, max(shape.longest, 1)), torch.int32)
    ordered = new_empty(order, order.shape)
    runs = new_full(targets, (shape.samples, shape.classes), -1, torch.int32)
    launch(
        SOURCE, f"ctc_sort<{ctype(targets.dtype)}>", shape.samples * shape.longest,
        targets=targets, target_lengths=lengths, order=order, sorted=ordered, runs=runs,
        samples=shape.samples, longest=shape.longest, classes=shape.classes, labels=where,
    )  # fmt: skip
    return order, ordered, runs
