"""Samples of mixtures of experts: by schema, since the packages are not installed."""

from functools import partial
from typing import Any

import torch

from detmode.rules.vllm_moe import MARLIN, PLACING
from detmode.table.samples import Maker, Samples, sample


def _places(make: Maker) -> dict[str, Any]:
    written = {
        name: make.integers(0, 1, size, dtype=torch.int32)
        for name, size in (
            *(("sorted_token_ids", 64), ("experts_ids", 4), ("num_tokens_post_pad", 1)),
        )
    }
    ids = make.integers(0, 4, 8, 2, dtype=torch.int32)
    return {"topk_ids": ids, "num_experts": 4, "block_size": 16, **written}


def _product(make: Maker) -> dict[str, Any]:
    return {"input": make.normal(8, 64), "output": make.normal(16, 32)}


def _marlin(make: Maker, use_atomic_add: bool) -> dict[str, Any]:
    return {"a": make.normal(8, 64), "use_atomic_add": use_atomic_add}


_half = partial(sample, dtypes=(torch.float16,))

SAMPLES = Samples(
    cases=(
        *(sample("tokens", _places, op=op, variants=("cpu",)) for op in PLACING),
        _half("split", _product, op="_moe_C::moe_wna16_gemm", variants=("cpu",)),
        *(
            _half(name, partial(_marlin, use_atomic_add=atomic), op=op)
            for op in MARLIN
            for name, atomic in (("atomic", True), ("locked", False))
        ),
    ),
)
