"""Collectives that reduce over GPUs: ``all_reduce`` and ``reduce_scatter``, by NCCL.

## What varies

On machines with NVLink switches NCCL may reduce inside the switch (NVLS, and across nodes
NVLSTree), where the order of additions is the hardware's. Rings and trees add in a fixed order for
a fixed set of ranks. MAX, MIN and groups of two ranks have no order, and cannot vary.

## What happens instead

If the flag is on when a process group is built, and ``NCCL_ALGO`` is unset, PyTorch sets it to
``^NVLS``. NCCL excludes only that algorithm, so NVLSTree remains possible where ranks may be on
several nodes. If one of the two is possible when the call is made, detmode warns in its own words.

## Cost

That of PyTorch's own path: rings and trees instead of the switch.

## Limits

NCCL compares the names in ``NCCL_ALGO`` as wholes, for each function by itself: ``^NVLS`` leaves
NVLSTree, and ``broadcast:ring`` all algorithms for ``all_reduce``. PyTorch 2.8 does not show which
operation is reduced: there MAX and MIN count as sums.

Set ``NCCL_ALGO=^NVLS,NVLSTree`` or ``NCCL_NVLS_ENABLE=0`` beforehand, as ``detmode run`` does. On
one node it is enough to build process groups inside the mode, if ``WORLD_SIZE`` and
``LOCAL_WORLD_SIZE`` show that there is one node (``torchrun`` sets them). All are read when the
call is made; detmode cannot tell whether they were set when the group was built. A different number
of ranks gives different bits. Symmetric memory is a separate family.
"""

from detmode.table.chain import RowFields, chain
from detmode.table.conditions import COMPLEX, FLOATING, dtype_in, nvls_possible, on, order_matters
from detmode.table.rule import RUN_TO_RUN, Native, Refuse

# Of each collective, the argument with the tensors that it reduces.
REDUCING = {
    "c10d::allreduce_": "tensors",
    "c10d::allreduce_coalesced_": "tensors",
    "c10d::reduce_": "tensors",
    "c10d::reduce_scatter_": "output_tensors",
    "c10d::_reduce_scatter_base_": "output_tensor",
    "c10d::reduce_scatter_tensor_coalesced_": "outputs",
    "_c10d_functional::all_reduce": "input",
    "_c10d_functional::all_reduce_coalesced": "inputs",
    "_c10d_functional::reduce_scatter_tensor": "input",
    "_c10d_functional::reduce_scatter_tensor_coalesced": "inputs",
    "_c10d_functional::reduce_scatter_tensor_out": "input",
    "_c10d_functional_autograd::all_reduce": "input",
    "_c10d_functional_autograd::reduce_scatter_tensor": "input",
    "c10d_functional::all_reduce": "self",
    "c10d_functional::all_reduce_coalesced": "self",
    "c10d_functional::reduce_scatter_tensor": "input",
    "c10d_functional::reduce_scatter_tensor_coalesced": "inputs",
}

RULES = tuple(
    rule
    for op, name in REDUCING.items()
    for rule in chain(
        op,
        RowFields(
            when=on("cuda")
            & dtype_in(name, FLOATING + COMPLEX)
            & order_matters()
            & nvls_possible(),
            action=Refuse(),
            because="NCCL may reduce inside the NVLink switch; set NCCL_ALGO=^NVLS,NVLSTree",
        ),
        RowFields(
            when=on("cuda") & dtype_in(name, FLOATING + COMPLEX) & order_matters(),
            action=Native(),
            guarantee=RUN_TO_RUN,
            because="NCCL_ALGO keeps NCCL to rings and trees, which add in a fixed order",
        ),
        otherwise="integers add exactly, MAX, MIN and two ranks have no order, and NVLS needs GPUs",
    )
)
