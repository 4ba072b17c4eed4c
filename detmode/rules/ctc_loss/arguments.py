"""Checks of the arguments of the CTC loss's backward, and its lengths moved to the device."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence

import torch
from torch import Tensor

from detmode.cuda import Source, contiguous, ctype, launch, new_empty, of_dtypes
from detmode.cuda.checks import check_implemented, check_scalar_type

TARGETS = (torch.int32, torch.int64)
FLOATS = (torch.float32, torch.float64)
LengthPairs = namedtuple("LengthPairs", "a b c d e f g h i j k l")
"""Lengths that ``ctc_write_lengths`` takes at once, two in each."""
PAIRS = len(LengthPairs._fields)

SOURCE = Source(
    __file__,
    "kernels.cu",
    entries=(
        "ctc_write_lengths",
        *of_dtypes(TARGETS, "ctc_sort"),
        *(
            f"ctc_posteriors<{ctype(dtype)}, {ctype(target)}>"
            for dtype in FLOATS
            for target in TARGETS
        ),
        *of_dtypes(FLOATS, "ctc_gradient"),
    ),
)


def check(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
) -> None:
    """Raise for what does not go together; ATen checks this in the forward operator, if at all."""
    if log_probs.dim() != 3:
        raise RuntimeError(f"Expected 3-dimensional log_probs, but got {list(log_probs.shape)}")
    times, samples, classes = log_probs.shape
    check_implemented("ctc_loss_backward_cuda", log_probs.dtype, FLOATS)
    if targets.dtype not in TARGETS:
        raise RuntimeError(f"expected scalar type {torch.int32} but found {targets.dtype}")
    check_scalar_type(log_probs.dtype, grad.dtype, neg_log_likelihood.dtype, log_alpha.dtype)
    for name, tensor in (("grad", grad), ("neg_log_likelihood", neg_log_likelihood)):
        if tensor.shape != (samples,):
            raise RuntimeError(f"Expected {name} of shape [{samples}], but got {tensor.shape}")
    if log_alpha.dim() != 3 or log_alpha.shape[:2] != (samples, times):
        raise RuntimeError(
            f"Expected log_alpha of shape [{samples}, {times}, 2 * longest target + 1], but got "
            f"{list(log_alpha.shape)}"
        )
    if not 0 <= blank < classes and log_probs.numel():
        raise RuntimeError("blank must be in label range")
    fits = targets.dim() == 1 or (
        targets.dim() == 2
        and targets.shape[0] == samples
        and targets.shape[1] >= log_alpha.shape[2] // 2
    )
    if not fits:
        raise RuntimeError(
            f"Expected targets of shape [{samples}, {log_alpha.shape[2] // 2}] or all in one "
            f"dimension, but got {list(targets.shape)}"
        )


def lengths_of(
    name: str, lengths: Sequence[int] | Tensor, like: Tensor, longest: int, total: int | None = None
) -> Tensor:
    """The lengths of the samples as int64 on the device of ``like``, without waiting for it.

    Args:
        name: for messages.
        lengths: a list, or a tensor on any device.
        like: (T, N, C); there are N lengths.
        longest: a bound of the lengths.
        total: a bound of their sum.

    Raises:
        RuntimeError: lengths that do not fit, where Python can see them; on a GPU, the kernels
            assert.
    """
    if isinstance(lengths, Tensor):
        if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
            raise RuntimeError(f"{name} must be integral")
        if lengths.numel() != like.shape[1]:
            raise RuntimeError(f"{name} must be of size batch_size")
        if lengths.device == like.device and like.device.type != "cpu":
            return contiguous(lengths, torch.int64).view(-1)
        lengths = lengths.reshape(-1).tolist()
    if len(lengths) != like.shape[1]:
        raise RuntimeError(f"{name} must be of size batch_size")
    for length in lengths:
        if not 0 <= length <= longest:
            raise RuntimeError(
                f"Expected {name} to have value at least 0 and at most {longest}, but got value "
                f"{length}"
            )
    if total is not None and sum(lengths) > total:
        raise RuntimeError(f"Expected {name} to add up to at most {total}, but got {sum(lengths)}")
    return _written(lengths, like)


def _written(lengths: Sequence[int], like: Tensor) -> Tensor:
    """The lengths as a tensor, by launches that have them as arguments."""
    result = new_empty(like, (len(lengths),), torch.int64)
    for first in range(0, len(lengths), 2 * PAIRS):
        part = list(lengths[first : first + 2 * PAIRS])
        padded = part + [0] * (2 * PAIRS - len(part))
        pairs = (low | high << 32 for low, high in zip(padded[::2], padded[1::2]))
        written, n = result[first:], len(part)
        launch(SOURCE, "ctc_write_lengths", n, lengths=written, n=n, p=LengthPairs(*pairs))
    return result
