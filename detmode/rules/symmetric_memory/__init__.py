"""Reductions over symmetric memory inside the NVLink switch: ``symm_mem::multimem_*`` and others.

## What varies

A multimem load has the NVLink switch add what all GPUs hold at one address. The order of the
additions is the hardware's, and no document fixes it. PyTorch is silent about it.

## What happens instead

detmode warns in its own words. There is no substitute for a reduction by the switch.

## Cost

None.

## Limits

``one_shot_all_reduce``, ``two_shot_all_reduce`` and ``reduce_scatter_out`` read their peers in an
order that the rank fixes, and are not listed. ``nccl_reduce_scatter_offset`` reduces in the switch
only where it can; a call does not say whether it does.
"""

from detmode.table.chain import chain
from detmode.table.conditions import FLOATING, dtype_in, on
from detmode.table.rule import Refuse

# Of each operator, the argument with the tensors that it reduces.
REDUCING = {
    "symm_mem::multimem_all_reduce_": "input",
    "symm_mem::multimem_one_shot_all_reduce": "input",
    "symm_mem::multimem_one_shot_all_reduce_out": "input",
    "symm_mem::multimem_one_shot_reduce_out": "input",
    "symm_mem::nccl_reduce_scatter_offset": "input",
    "symm_mem::tile_reduce": "in_tile",
    "symm_mem::multi_root_tile_reduce": "in_tiles",
}

RULES = tuple(
    rule
    for op, name in REDUCING.items()
    for rule in chain(
        op,
        when=on("cuda") & dtype_in(name, FLOATING),
        action=Refuse(),
        because="the NVLink switch adds what the GPUs hold in an order of its own",
        otherwise="integers add exactly",
    )
)
