"""Reductions over symmetric memory, inside the NVLink switch or not: ``symm_mem::*reduce*``.

## What varies

A multimem load has the NVLink switch add what all GPUs hold at one address. The order of the
additions is the hardware's, and no document fixes it. PyTorch is silent about it. Measurements that
were reported for Megatron-LM (NVIDIA/Megatron-LM#6806) found that sums of float32 are the exact
sums, rounded once, which have no order, and that sums of bfloat16 are not: the switch truncates.

## What happens instead

detmode warns in its own words: a measurement of others is no guarantee of the hardware.
MAX, MIN and groups of two ranks have no order, and are allowed.
``one_shot_all_reduce``, ``two_shot_all_reduce`` and ``reduce_scatter_out`` read their peers one
after the other and add them in an order that the ranks fix: they run as they are.

## Cost

None.

## Limits

For groups of 2, 4 and 8 ranks the order is that of the ranks. For other sizes each rank begins with
what it holds itself: ``one_shot_all_reduce`` then gives the same bits in every run, but not the
same bits on all ranks. ``nccl_reduce_scatter_offset`` reduces in the switch only where it can; a
call does not say whether it does.
"""

import torch

from detmode.table.chain import RowFields, chain
from detmode.table.conditions import FLOATING, REDUCED, dtype_in, on, order_matters
from detmode.table.rule import RUN_TO_RUN, Native, Refuse

# Of each operator, the argument with the tensors that it reduces.
SWITCHED = {
    "symm_mem::multimem_all_reduce_": "input",
    "symm_mem::multimem_one_shot_all_reduce": "input",
    "symm_mem::multimem_one_shot_all_reduce_out": "input",
    "symm_mem::multimem_one_shot_reduce_out": "input",
    "symm_mem::nccl_reduce_scatter_offset": "input",
    "symm_mem::tile_reduce": "in_tile",
    "symm_mem::multi_root_tile_reduce": "in_tiles",
}

ORDERED = {
    "symm_mem::one_shot_all_reduce": "input",
    "symm_mem::one_shot_all_reduce_out": "input",
    "symm_mem::one_shot_all_reduce_copy": "local_input",
    "symm_mem::one_shot_all_reduce_copy_out": "local_input",
    "symm_mem::two_shot_all_reduce_": "input",
    "symm_mem::two_shot_all_reduce_out": "input",
    "symm_mem::reduce_scatter_out": "input",
}

EXACT = "integers add exactly, and MAX, MIN and two ranks have no order"

RULES = (
    *(
        rule
        for op, name in SWITCHED.items()
        for rule in chain(
            op,
            RowFields(
                when=on("cuda") & dtype_in(name, (torch.float32,)) & order_matters(),
                because="the NVLink switch adds in an order of its own; its sums of float32 are "
                "reported to be exact (NVIDIA/Megatron-LM#6806), which no document promises",
            ),
            RowFields(
                when=on("cuda") & dtype_in(name, (*REDUCED, torch.float64)) & order_matters(),
                because="the NVLink switch adds in an order of its own, and its sums of bfloat16 "
                "are reported not to be exact (NVIDIA/Megatron-LM#6806)",
            ),
            action=Refuse(),
            otherwise=EXACT,
        )
    ),
    *(
        rule
        for op, name in ORDERED.items()
        for rule in chain(
            op,
            when=on("cuda") & dtype_in(name, FLOATING) & order_matters(),
            action=Native(),
            guarantee=RUN_TO_RUN,
            because="peers are read one after the other, in an order that the ranks fix",
            otherwise=EXACT,
        )
    ),
)
