"""Samples of bitsandbytes' optimizers, with and without the norm of the update."""

from functools import partial
from typing import Any

import torch

from detmode.table.samples import Maker, Samples, sample

_NUMBERS = {
    **{"param_norm": 1.0, "beta1": 0.9, "beta2": 0.999, "beta3": 0.0, "alpha": 0.0},
    **{"eps": 1e-8, "weight_decay": 0.0, "step": 1, "lr": 1e-3, "gnorm_scale": 1.0},
}


def _update(make: Maker, max_unorm: float) -> dict[str, Any]:
    tensors = {name: make.normal(64) for name in ("g", "p", "state1", "state2", "unorm_vec")}
    return {"optimizer_name": "lamb", **tensors, "max_unorm": max_unorm, **_NUMBERS}


_case = partial(sample, op="bitsandbytes::optimizer_update_32bit", dtypes=(torch.float32,))

SAMPLES = Samples(
    cases=(
        _case("by_norm", partial(_update, max_unorm=1.0), variants=("cpu",)),
        _case("plain", partial(_update, max_unorm=0.0)),
    ),
)
