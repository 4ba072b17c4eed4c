"""Samples of the backward of attention: they bind, and run on CUDA only."""

from typing import Any

import torch

from detmode.table.samples import Maker, Samples, sample


def _common(make: Maker, grad: str) -> dict[str, Any]:
    shape = (2, 2, 16, 64)
    names = (grad, "query", "key", "value", "out")
    return {
        **{name: make.normal(*shape) for name in names},
        "logsumexp": make.normal(2, 2, 16, dtype=torch.float32),
        "dropout_p": 0.0,
    }


def _seed(make: Maker, *names: str) -> dict[str, Any]:
    return {name: make.integers(0, 9, 2) for name in names}


def _flash(make: Maker, *seeds: str) -> dict[str, Any]:
    return {
        **_common(make, "grad_out"),
        **_seed(make, "cum_seq_q", "cum_seq_k", *seeds),
        "max_q": 16,
        "max_k": 16,
        "is_causal": False,
    }


def _efficient(make: Maker) -> dict[str, Any]:
    return {
        **_common(make, "grad_out_"),
        **_seed(make, "philox_seed", "philox_offset"),
        "bias": None,
        "cu_seqlens_q": None,
        "cu_seqlens_k": None,
        "max_seqlen_q": 16,
        "max_seqlen_k": 16,
        "custom_mask_type": 0,
        "bias_requires_grad": False,
    }


def _sdp_efficient(make: Maker) -> dict[str, Any]:
    return {
        **_common(make, "grad_out_"),
        **_seed(make, "philox_seed", "philox_offset"),
        "attn_bias": make.normal(2, 2, 16, 16),
        "grad_input_mask": [True, True, True, False],
    }


def _cudnn(make: Maker) -> dict[str, Any]:
    seeds = ("philox_seed", "philox_offset")
    return {**_flash(make, *seeds), "attn_bias": make.normal(2, 2, 16, 16)}


_PHILOX = ("philox_seed", "philox_offset")


SAMPLES = Samples(
    cases=tuple(
        sample("causal_free", make, op=f"aten::{op}", dtypes=(torch.bfloat16,), variants=("cpu",))
        for op, make in (
            ("_flash_attention_backward", lambda make: _flash(make, "rng_state", "unused")),
            ("_efficient_attention_backward", _efficient),
            ("_scaled_dot_product_flash_attention_backward", lambda make: _flash(make, *_PHILOX)),
            ("_scaled_dot_product_efficient_attention_backward", _sdp_efficient),
            ("_cudnn_attention_backward", _cudnn),
            ("_scaled_dot_product_cudnn_attention_backward", _cudnn),
        )
    ),
)
