"""Samples of collectives: they bind; to run they need a process group."""

from functools import partial
from typing import Any

import torch

from detmode.rules.collectives import REDUCING
from detmode.table.conditions import COMPLEX, FLOATING
from detmode.table.inputs import of_schema
from detmode.table.samples import Maker, Sample, Samples


def _call(make: Maker, op: str) -> dict[str, Any]:
    one, many = make.normal(8), [make.normal(8), make.normal(8)]
    known = {
        **dict.fromkeys(("input", "input_tensor", "output_tensor", "out"), one),
        **dict.fromkeys(("tensors", "inputs", "outputs", "output_tensors"), many),
        "self": many if "coalesced" in op else one,
        "input_tensors": [many],
        **dict.fromkeys(("process_group", "sparse_indices")),
        **dict.fromkeys(("root_rank", "root_tensor"), 0),
        # The schemas' spellings, those of c10d_functional last; no common type marks the argument.
        **dict.fromkeys(("reduce_op", "reduceOp"), "sum"),
        **dict.fromkeys(("group_name", "tag"), "default"),
        "ranks": [0, 1, 2],  # of two ranks a sum has no order
        "group_size": 3,
    }
    return of_schema(op, known)


SAMPLES = Samples(
    cases=tuple(
        Sample(
            name=name,
            op=op,
            make=partial(_call, op=op),
            dtypes=(torch.int64,) if name == "integers" else FLOATING + COMPLEX,
            device="cpu" if name == "host" else "cuda",
        )
        for op in REDUCING
        for name in ("sum", "integers", "host")
    ),
)
