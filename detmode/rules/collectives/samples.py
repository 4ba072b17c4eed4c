"""Samples of collectives: they bind; to run they need a process group."""

from functools import partial
from typing import Any

import torch

from detmode.table.conditions import COMPLEX, FLOATING
from detmode.table.samples import Maker, Sample, Samples

_GROUP = {"process_group": None, "reduce_op": None}


def _c10d(make: Maker, op: str) -> dict[str, Any]:
    one, many = make.normal(8), [make.normal(8), make.normal(8)]
    arguments: dict[str, dict[str, Any]] = {
        "allreduce_": {"tensors": [one], **_GROUP, "sparse_indices": None},
        "allreduce_coalesced_": {"tensors": many, **_GROUP},
        "reduce_": {"tensors": [one], **_GROUP, "root_rank": 0, "root_tensor": 0},
        "reduce_scatter_": {"output_tensors": [one], "input_tensors": [many], **_GROUP},
        "_reduce_scatter_base_": {"output_tensor": one, "input_tensor": one, **_GROUP},
        "reduce_scatter_tensor_coalesced_": {"outputs": many, "inputs": many, **_GROUP},
    }
    return arguments[op]


def _functional(make: Maker, op: str) -> dict[str, Any]:
    several = "coalesced" in op
    value: Any = [make.normal(8), make.normal(8)] if several else make.normal(8)
    arguments: dict[str, Any] = {
        "inputs" if several else "input": value,
        "reduce_op": "sum",
        "group_name": "default",
    }
    if "scatter" in op:
        arguments["group_size"] = 2
    return {**arguments, "out": make.normal(4)} if op.endswith("_out") else arguments


def _legacy(make: Maker, op: str) -> dict[str, Any]:
    several = "coalesced" in op
    value: Any = [make.normal(8), make.normal(8)] if several else make.normal(8)
    name = ("inputs" if several else "input") if "scatter" in op else "self"
    return {name: value, "reduceOp": "sum", "tag": "", "ranks": [0, 1], "group_size": 2}


_C10D = (
    "allreduce_",
    "allreduce_coalesced_",
    "reduce_",
    "reduce_scatter_",
    "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_",
)
_FUNCTIONAL = (
    "all_reduce",
    "all_reduce_coalesced",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
)


SAMPLES = Samples(
    cases=tuple(
        Sample(
            name=name,
            op=f"{namespace}::{op}",
            make=partial(arguments, op=op),
            dtypes=(torch.int64,) if name == "integers" else FLOATING + COMPLEX,
            device=device,
        )
        for namespace, ops, arguments in (
            ("c10d", _C10D, _c10d),
            ("_c10d_functional", (*_FUNCTIONAL, "reduce_scatter_tensor_out"), _functional),
            ("_c10d_functional_autograd", ("all_reduce", "reduce_scatter_tensor"), _functional),
            ("c10d_functional", _FUNCTIONAL, _legacy),
        )
        for op in ops
        for name, device in (("sum", "cuda"), ("integers", "cuda"), ("host", "cpu"))
    ),
)
