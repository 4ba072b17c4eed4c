"""Samples of the backward of the CTC loss."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from detmode.table.samples import Maker, Sample, Samples, sample

OP, TENSOR = "aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor"
FLOATS = (torch.float32, torch.float64)
INFEASIBLE = ((1, 1, 1), (2,), (1, 2)), (4, 3, 1)
TARGETS = ((1, 2, 1, 3), (2, 2, 2), (3, 1))


def _call(
    m: Maker,
    targets: tuple[tuple[int, ...], ...] = TARGETS,
    inputs: tuple[int, ...] = (9, 8, 5),
    classes: int = 5,
    blank: int = 0,
    *,
    concatenated: bool = False,
    log_probs: Tensor | None = None,
    dtype: torch.dtype = torch.int64,
    **more: Any,
) -> dict[str, Any]:
    samples, lengths = len(targets), [len(target) for target in targets]
    padded = torch.zeros(samples, max(lengths, default=0) + 1, dtype=dtype, device="cpu")
    for row, target in zip(padded, targets):
        row[: len(target)] = torch.tensor(target, dtype=dtype, device="cpu")
    labels = torch.tensor(
        [label for target in targets for label in target], dtype=dtype, device="cpu"
    )
    labels = labels if concatenated else padded
    if log_probs is None:
        log_probs = m.normal(max(inputs, default=3), samples, classes).log_softmax(2)
    forward = torch.ops.aten._ctc_loss
    loss, log_alpha = forward(log_probs.cpu(), labels, list(inputs), lengths, blank)
    return {
        "grad": m.normal(samples),
        "log_probs": log_probs,
        "targets": labels.to(m.device),
        "input_lengths": list(inputs),
        "target_lengths": lengths,
        "neg_log_likelihood": loss.to(m.device),
        "log_alpha": log_alpha.to(m.device),
        "blank": blank,
        **more,
    }


def _as_tensors(call: dict[str, Any], dtype: torch.dtype = torch.int64) -> dict[str, Any]:
    device = call["log_probs"].device
    for name in ("input_lengths", "target_lengths"):
        call[name] = torch.tensor(call[name], dtype=dtype, device=device)
    return call


def _strided(m: Maker) -> dict[str, Any]:
    # As from a convolution: (N, C, T).
    log_probs = m.normal(3, 5, 9).log_softmax(1).permute(2, 0, 1)
    call = _call(m, log_probs=log_probs)
    call["targets"] = call["targets"].t().contiguous().t()
    call["grad"] = call["grad"][:1].expand(3)
    call["log_alpha"] = call["log_alpha"].transpose(0, 1).contiguous().transpose(0, 1)
    return call


def _masked(m: Maker) -> dict[str, Any]:
    # A class that no target has, and that cannot occur.
    log_probs = m.normal(9, 3, 5)
    log_probs[:, :, 4] = -inf
    return _call(m, log_probs=log_probs.log_softmax(2))


def _unlikely(m: Maker) -> dict[str, Any]:
    # Probabilities whose product is far below the smallest double.
    log_probs = (m.normal(40, 2, 4) * 100 - 400).clone()
    return _call(m, ((1, 2, 3) * 5, (2,) * 7), (40, 33), 4, log_probs=log_probs)


def _empty(m: Maker) -> dict[str, Any]:
    call = _call(m)
    for name in ("targets", "grad", "neg_log_likelihood", "log_alpha"):
        call[name] = call[name][:0]
    return {
        **call,
        "log_probs": call["log_probs"][:, :0],
        "input_lengths": [],
        "target_lengths": [],
    }


_sample = partial(sample, op=OP, dtypes=FLOATS)
_tensors = partial(_sample, op=TENSOR)
_plain = sample("plain", _call, op=OP)
# More states than a block has threads.
LONG = ((1, 2, 3, 2, 1) * 52,)


def _bench(name: str, times: int, samples: int, classes: int, length: int) -> Sample:
    def make(m: Maker) -> dict[str, Any]:
        rows = m.integers(1, classes, samples, length).tolist()
        return _call(m, tuple(map(tuple, rows)), (times,) * samples, classes)

    return Sample(name=name, op=OP, make=make, dtypes=FLOATS[:1])


SAMPLES = Samples(
    cases=(
        _sample("repeated_labels", _call, "collisions", variants=("cpu",)),
        _sample("one_label", lambda m: _call(m, ((1,) * 20,), (45,), 2), "collisions"),
        _sample("concatenated", lambda m: _call(m, concatenated=True)),
        _sample("int_targets", lambda m: _call(m, dtype=torch.int32, concatenated=True)),
        _sample("last_blank", lambda m: _call(m, blank=4)),
        _sample("blank_as_label", lambda m: _call(m, ((1, 0, 1), (0, 2), (3,)))),
        _sample("no_labels", lambda m: _call(m, ((), (1, 2), ()))),
        _sample("only_blanks", lambda m: _call(m, ((), ()), (4, 3))),
        _sample("nothing_concatenated", lambda m: _call(m, ((), ()), (4, 3), concatenated=True)),
        _sample("no_frames", lambda m: _call(m, ((), (1,), (2, 3)), (0, 0, 6), zero_infinity=True)),
        _sample("infeasible", lambda m: _call(m, *INFEASIBLE)),
        _sample("zero_infinity", lambda m: _call(m, *INFEASIBLE, zero_infinity=True)),
        _sample("masked_class", _masked),
        _sample("unlikely", _unlikely),
        _sample("strided", _strided, "non_contiguous"),
        _sample("empty_batch", _empty, "empty"),
        _sample("many_classes", lambda m: _call(m, ((1000, 7, 62),), (7,), 1001), "odd_sizes"),
        _sample("large", lambda m: _call(m, ((5, 6, 5), (1,)), (8, 5), 2203), "collisions"),
        _sample("many_samples", lambda m: _call(m, ((1, 2, 1),) * 27, tuple(range(5, 32)), 4)),
        _tensors("tensors", lambda m: _as_tensors(_call(m)), "collisions", variants=("cpu",)),
        _sample("int_lengths", lambda m: _as_tensors(_call(m), torch.int32), op=TENSOR),
        Sample(name="long_target", op=OP, make=lambda m: _call(m, LONG, (262,), 4)),
    ),
    errors=(
        _plain.but("byte_targets", targets=torch.Tensor.byte),
        _plain.but("mixed_dtypes", log_alpha=torch.Tensor.double),
        _plain.but("scalar_grad", grad=lambda grad: grad[0]),
        _plain.but("half", log_probs=torch.Tensor.half),
        sample("float_lengths", lambda m: _as_tensors(_call(m), torch.float32), op=TENSOR),
    ),
    bench=(
        _bench("speech_characters", 1000, 32, 32, 200),
        _bench("speech_long", 1500, 32, 1024, 250),
        _bench("speech_pieces", 400, 32, 5000, 60),
        _bench("ocr_chinese", 80, 128, 6625, 25),
    ),
    not_applicable={
        "channels_last": "no argument is an image",
        "negative_dim": "the operator takes no dimension",
    },
    unlike_cpu={
        "large": "in large calls ATen's CUDA kernels leave classes that no target has as they are",
    },
    unlike_magnitudes=dict.fromkeys(
        ("aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor"),
        "probabilities are given by their logarithms",
    ),
)
