"""Samples of reductions over symmetric memory: they bind; to run they need a process group."""

from functools import partial
from typing import Any

import torch

from detmode.rules.symmetric_memory import ORDERED, SWITCHED
from detmode.table.conditions import FLOATING
from detmode.table.samples import Maker, Samples, sample


def _arguments(make: Maker, op: str) -> dict[str, Any]:
    one, peer = make.normal(8, 8), make.normal(8, 8)
    reduced = {"reduce_op": "sum", "group_name": "default"}
    op = op.removeprefix("symm_mem::")
    if op == "nccl_reduce_scatter_offset":
        return {"input": one, "out": [peer], "group_name": "default", "dim": 0}
    if op == "tile_reduce":
        return {"in_tile": one, "out_tile": peer, "root": 0, **reduced}
    if op == "multi_root_tile_reduce":
        return {"in_tiles": [one], "out_tile": peer, "roots": [0], **reduced}
    if op == "reduce_scatter_out":
        return {"input": one, "group_name": "default", "split_last_dim": False, "output": peer}
    if op == "two_shot_all_reduce_out":
        return {"input": one, "output": peer, **reduced}
    if op.startswith("one_shot_all_reduce_copy"):
        out = {"out": make.normal(8, 8)} if op.endswith("_out") else {}
        return {"symm_buffer": peer, "local_input": one, **reduced, **out}
    root = {"root": 0} if op == "multimem_one_shot_reduce_out" else {}
    out = {"out": peer} if op.endswith("_out") else {}
    return {"input": one, **reduced, **root, **out}


SAMPLES = Samples(
    cases=tuple(
        sample(name, partial(_arguments, op=op), op=op, dtypes=dtypes)
        for op in (*SWITCHED, *ORDERED)
        for name, dtypes in (("sum", FLOATING), ("integers", (torch.int64,)))
    ),
)
