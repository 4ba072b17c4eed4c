"""Backward of the packages flash-attn and flash-attn-3: ``flash_attn_func`` and its variants.

The rows have no effect until one of the packages is imported. PyTorch's own copy of the kernels is
in the family ``attention``.

## What varies

Blocks of keys add their part of the gradient of the queries with a float ``atomicAdd``. The
argument ``deterministic``, which is false by default, gives each split of the keys a buffer of its
own, or has the blocks take turns. The packages do not read PyTorch's flag.

## What happens instead

The same operator is called with ``deterministic=True``, whatever the program asked for.

## Cost

The package's: a buffer of the queries' gradient for each split of the keys and their sum, or blocks
that wait for each other. The bytes are not counted.

## Limits

Names and arguments are those of flash-attn 2.7 and flash-attn-3, taken from their sources; the
tests define operators of these schemas, since the packages need a GPU to be built. Before 2.7
flash-attn calls its extension past the dispatcher: no mode sees that, and only
``flash_attn_func(..., deterministic=True)`` helps. The CuTe kernels of flash-attn 4 are not seen
either.
"""

from detmode.rules.flash_attn import launch
from detmode.table.chain import RowFields, chain
from detmode.table.conditions import argument, on
from detmode.table.rule import RUN_TO_RUN, Native, Refuse, Substitute

BACKWARDS = {
    "flash_attn::_flash_attn_backward": launch.flash_attn_backward,
    "flash_attn::_flash_attn_varlen_backward": launch.flash_attn_varlen_backward,
    "flash_attn_3::_flash_attn_backward": launch.flash_attn_3_backward,
    "flash_attn_3::bwd": launch.flash_attn_3_bwd,
}

RULES = tuple(
    rule
    for op, function in BACKWARDS.items()
    for rule in chain(
        op,
        RowFields(
            when=on("cuda") & argument("deterministic", True),
            action=Native(),
            because="the parts of a query's gradient are added in order, as the call asks",
        ),
        RowFields(
            when=on("cuda"),
            action=Substitute(function, otherwise=Refuse(), launches=False, traffic=None),
            because="blocks of keys add to the gradient of the queries with a float atomicAdd",
        ),
        guarantee=RUN_TO_RUN,
        otherwise="the kernels run on CUDA tensors only",
    )
)

FORWARDS = (
    "flash_attn::_flash_attn_forward",
    "flash_attn::_flash_attn_varlen_forward",
    "flash_attn_3::_flash_attn_forward",
    "flash_attn_3::fwd",
)
