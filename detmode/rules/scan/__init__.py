"""Scans of one row: ``cumsum``, ``cumprod`` and ``logcumsumexp``.

## What varies

Where all elements lie along the scanned dimension, ATen's CUDA scan is CUB's single-pass one,
whose tiles take their prefix from whichever neighbours have finished: floating-point results
depend on timing. Several rows at once are scanned by another kernel, in a fixed order.

## What happens instead

``cumsum``: under the flag PyTorch scans in fixed tiles, twice. On MPS the flag selects another
route for all scans. ``cumprod`` and ``logcumsumexp`` have no such path and no alert: detmode warns
in its own words. Integers do not vary and pass.

## Cost

``cumsum``, natively: the input is read twice instead of once.

## Limits

There is no substitute yet. A row that fits into one tile does not vary, but the size of a tile is
the GPU's, and the warning is given all the same. ``cumprod``'s backward is made of ``cumsum`` and
``cumprod``; each is met on its own.
"""

from detmode.conditions import COMPLEX, FLOATING, lies_along, on, result_dtype_in
from detmode.rule import RUN_TO_RUN, Allow, Native, Refuse, Rule

# Scans of one row in floating point.
_ONE_ROW = lies_along("self", "dim") & result_dtype_in("self", FLOATING + COMPLEX)
_OPS = ("aten::cumsum", "aten::cumprod", "aten::logcumsumexp")

RULES = (
    Rule(
        op="aten::cumsum",
        when=on("cuda") & _ONE_ROW,
        action=Native(),
        guarantee=RUN_TO_RUN,
        because="under the flag the sums of fixed tiles are added in order",
    ),
    *(
        Rule(
            op=op,
            when=on("cuda") & _ONE_ROW,
            action=Refuse(),
            because="the tiles of a single-pass scan combine in an order that depends on timing",
        )
        for op in ("aten::cumprod", "aten::logcumsumexp")
    ),
    *(
        Rule(
            op=op,
            when=on("mps") & result_dtype_in("self", FLOATING + COMPLEX),
            action=Native(),
            guarantee=RUN_TO_RUN,
            since="2.15",
            because="under the flag PyTorch takes another route",
        )
        for op in _OPS
    ),
    *(
        Rule(
            op=op,
            action=Allow(),
            because="several rows are scanned in a fixed order, and integers are exact",
        )
        for op in _OPS
    ),
)

# The backward of a product over a dimension is made of cumprod, that of a scan of scans.
FORWARDS = (*_OPS, "aten::prod")
