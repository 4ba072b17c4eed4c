"""Samples of the backward of attention: they bind, and run on CUDA only."""

from functools import partial
from typing import Any

import torch

from detmode.rules.attention import RULES
from detmode.table.inputs import of_schema
from detmode.table.samples import Maker, Sample, Samples


def _call(make: Maker, op: str) -> dict[str, Any]:
    names = ("grad_out", "grad_out_", "query", "key", "value", "out")
    seeds = ("cum_seq_q", "cum_seq_k", "rng_state", "unused", "philox_seed", "philox_offset")
    known = {
        **{name: make.normal(2, 2, 16, 64) for name in names},
        "logsumexp": make.normal(2, 2, 16, dtype=torch.float32),
        "attn_bias": make.normal(2, 2, 16, 16),
        **{name: make.integers(0, 9, 2) for name in seeds},
        **dict.fromkeys(("max_q", "max_k", "max_seqlen_q", "max_seqlen_k"), 16),
        **dict.fromkeys(("bias", "cu_seqlens_q", "cu_seqlens_k")),
        **dict.fromkeys(("is_causal", "bias_requires_grad"), False),
        "gradient": make.normal(2, 2, 16, 64),
        "dropout_p": 0.0,
        "custom_mask_type": 0,
        "grad_input_mask": [True, True, True, False],
    }
    return of_schema(op, known)


SAMPLES = Samples(
    cases=tuple(
        Sample(
            name="causal_free",
            op=op,
            make=partial(_call, op=op),
            dtypes=(torch.bfloat16,),
            variants=("cpu",),
        )
        for op in dict.fromkeys(rule.op for rule in RULES)
    ),
)
