"""Samples of matrix products."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from detmode.rules.matmul import sparse_samples
from detmode.table.conditions import COMPLEX, FLOATING
from detmode.table.samples import Maker, Samples, sample


def _dense(make: Maker, op: str) -> dict[str, Any]:
    matrices = make.normal(3, 4), make.normal(4, 5)
    batches = make.normal(2, 3, 4), make.normal(2, 4, 5)
    arguments: dict[str, dict[str, Any]] = {
        "mm": dict(zip(("self", "mat2"), matrices)),
        "addmm": {"self": make.normal(3, 5), **dict(zip(("mat1", "mat2"), matrices))},
        "bmm": dict(zip(("self", "mat2"), batches)),
        "baddbmm": {"self": make.normal(2, 3, 5), **dict(zip(("batch1", "batch2"), batches))},
        "addbmm": {"self": make.normal(3, 5), **dict(zip(("batch1", "batch2"), batches))},
        "mv": {"self": matrices[0], "vec": make.normal(4)},
        "addmv": {"self": make.normal(3), "mat": matrices[0], "vec": make.normal(4)},
    }
    return arguments[op]


def _into_float(make: Maker, op: str) -> dict[str, Any]:
    return {**_dense(make, op), "out_dtype": torch.float32}


def _with_bias(make: Maker, arguments: Callable[[Maker, str], dict[str, Any]]) -> dict[str, Any]:
    return {**arguments(make, "addmm"), "self": make.normal(5)}


def _batches(make: Maker) -> dict[str, Any]:
    arguments = _dense(make, "bmm")
    return {**arguments, "self": arguments["self"].to_sparse()}


_OPS = ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv")
_every = partial(sample, dtypes=FLOATING + COMPLEX, variants=("cpu",))

SAMPLES = Samples(
    cases=(
        *(_every("dense", partial(_dense, op=op), op=f"aten::{op}") for op in _OPS),
        *(
            _every("dense", partial(_into_float, op=op), op=f"aten::{op}.dtype")
            for op in ("mm", "addmm", "bmm", "baddbmm")
        ),
        *(
            sample("bias", partial(_with_bias, arguments=arguments), op=op, dtypes=FLOATING)
            for op, arguments in (("aten::addmm", _dense), ("aten::addmm.dtype", _into_float))
        ),
        sample("sparse_self", _batches, op="aten::bmm"),
        *sparse_samples.CASES,
    ),
    errors=sparse_samples.ERRORS,
    bench=sparse_samples.BENCH,
    not_applicable={
        "channels_last": "matrices and vectors have no channels",
        "negative_dim": "no operator takes a dim",
    },
)
