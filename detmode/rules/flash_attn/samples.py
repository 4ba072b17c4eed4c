"""Samples of the backward of flash-attn: by schema, since the package is not installed."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from detmode.rules.flash_attn import BACKWARDS
from detmode.table.samples import Maker, Samples, sample

_POSITIONAL = {
    "dropout_p": 0.0,
    "softmax_scale": 0.5,
    "causal": False,
    "window_size_left": -1,
    "window_size_right": -1,
    "softcap": 0.0,
    "alibi_slopes": None,
}
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k")


def _arguments(make: Maker, op: str, deterministic: bool) -> dict[str, Any]:
    shape = (8, 2, 4) if "varlen" in op else (1, 8, 2, 4)
    tensors = ("dout", "q", "k", "v", "out")
    arguments: dict[str, Any] = {name: make.normal(*shape) for name in tensors}
    arguments["softmax_lse"] = make.normal(2, 8, dtype=torch.float32)
    arguments |= {name: make.normal(*shape) for name in ("dq", "dk", "dv")}
    if "varlen" in op:
        arguments |= {name: make.tensor([0, 3, 8], torch.int32) for name in _LENGTHS}
        arguments |= {"max_seqlen_q": 5, "max_seqlen_k": 5}
    if op.startswith("flash_attn::"):
        arguments |= _POSITIONAL
    elif op.endswith("::bwd"):
        arguments |= {"softmax_scale": 0.5, "is_causal": False}
    return arguments | {"deterministic": deterministic}


SAMPLES = Samples(
    cases=tuple(
        sample(
            "as_asked" if deterministic else "by_default",
            partial(_arguments, op=op, deterministic=deterministic),
            op=op,
            dtypes=(torch.float16,),
            variants=() if deterministic else ("cpu",),
        )
        for op in BACKWARDS
        for deterministic in (True, False)
    ),
    not_applicable=dict.fromkeys(
        (
            *("collisions", "empty", "non_contiguous", "channels_last", "negative_dim"),
            *("odd_sizes", "errors", "bench"),
        ),
        "the package's own kernel runs, on a GPU that it supports",
    ),
)
