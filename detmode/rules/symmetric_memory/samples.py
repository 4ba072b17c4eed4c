"""Samples of reductions inside the NVLink switch: they bind; to run they need a process group."""

from functools import partial
from typing import Any

import torch

from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker, Sample, Samples

_OPS = (
    "multimem_all_reduce_",
    "multimem_one_shot_all_reduce",
    "multimem_one_shot_all_reduce_out",
    "multimem_one_shot_reduce_out",
    "nccl_reduce_scatter_offset",
    "tile_reduce",
    "multi_root_tile_reduce",
)


def _arguments(make: Maker, op: str) -> dict[str, Any]:
    one, other = make.normal(8, 8), make.normal(8, 8)
    reduced = {"reduce_op": "sum", "group_name": "default"}
    if op == "nccl_reduce_scatter_offset":
        return {"input": one, "out": [other], "group_name": "default", "dim": 0}
    if op == "tile_reduce":
        return {"in_tile": one, "out_tile": other, "root": 0, **reduced}
    if op == "multi_root_tile_reduce":
        return {"in_tiles": [one], "out_tile": other, "roots": [0], **reduced}
    root = {"root": 0} if op == "multimem_one_shot_reduce_out" else {}
    out = {"out": other} if op.endswith("_out") else {}
    return {"input": one, **reduced, **root, **out}


SAMPLES = Samples(
    cases=tuple(
        Sample(
            name=name,
            op=f"symm_mem::{op}",
            make=partial(_arguments, op=op),
            dtypes=(torch.int64,) if name == "integers" else FLOATING,
        )
        for op in _OPS
        for name in ("sum", "integers")
    ),
)
