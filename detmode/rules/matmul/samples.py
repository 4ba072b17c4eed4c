"""Samples of matrix products."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from detmode.rules.matmul import MAY_BE_SPARSE
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


def _with_sparse(make: Maker, op: str, name: str) -> dict[str, Any]:
    arguments = _dense(make, op.removeprefix("aten::"))
    # Only compressed rows may stand on the right of a product, or in addmv.
    compressed = name == "mat2" or op == "aten::addmv"
    matrix = arguments[name]
    with warnings.catch_warnings():
        # PyTorch says once that compressed rows are in beta.
        warnings.simplefilter("ignore", UserWarning)
        arguments[name] = matrix.to_sparse_csr() if compressed else matrix.to_sparse()
    return arguments


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
        *(
            sample(f"sparse_{name}", partial(_with_sparse, op=op, name=name), op=op)
            for op, names in {**MAY_BE_SPARSE, "aten::bmm": ("self",)}.items()
            for name in names
        ),
    ),
)
