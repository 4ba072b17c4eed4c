"""Backward of causal-conv1d, which Mamba's layers call: ``causal_conv1d_fn``.

The rows have no effect until causal-conv1d is imported.

## What varies

Until 1.5 each block adds its part of the gradients of ``weight`` and ``bias`` with a float
``atomicAdd``. Since 1.6 PyTorch's flag selects partial sums that are added in order, unless
``CAUSAL_CONV1D_DETERMINISTIC=0`` is set.

## What happens instead

Since 1.6: the package's own deterministic sums. Before, and where the variable forbids them,
detmode warns in its own words.

## Cost

Since 1.6: a buffer of partial sums for each block, and their sum.

## Limits

The operator's name is taken from the sources of 1.5 and 1.6; the tests define one of its schema,
since the package needs a GPU to be built. Before 1.5 the extension is called past the dispatcher,
and no mode sees it. So it is with the kernels of mamba-ssm itself, whose newer releases read
PyTorch's flag unless ``MAMBA_DETERMINISTIC=0`` is set.
"""

from detmode.table.chain import RowFields, chain
from detmode.table.conditions import causal_conv1d_adds_by_atomics, on
from detmode.table.rule import RUN_TO_RUN, Native, Refuse

RULES = chain(
    "DaoAILab::_causal_conv1d_bwd_cpp",
    RowFields(
        when=on("cuda") & causal_conv1d_adds_by_atomics(),
        action=Refuse(),
        because="blocks add to the gradients of weight and bias with a float atomicAdd",
    ),
    RowFields(
        when=on("cuda"),
        action=Native(),
        guarantee=RUN_TO_RUN,
        because="under the flag the blocks' sums of the gradients are added in order",
    ),
    otherwise="the kernels run on CUDA tensors only",
)

FORWARDS = ("DaoAILab::_causal_conv1d_fwd_cpp",)
