"""Optimizers of bitsandbytes in 32 bits whose updates are scaled by a norm: LAMB and LARS.

The rows have no effect until bitsandbytes is imported.

## What varies

With ``max_unorm`` above zero the norm of a whole update is added up by the blocks of a kernel with
a float ``atomicAdd``, and scales the update.

## What happens instead

detmode warns in its own words. Without ``max_unorm``, as in Adam, AdamW, SGD and all optimizers in
8 bits by blocks, an element is updated by one thread, and the call is allowed.

## Cost

None: no other kernel runs.

## Limits

The operator's schema is checked against bitsandbytes 0.50.2; the atomics were found in its
sources. Percentile clipping adds a norm by ``atomicAdd`` as well, in a
library that is called past the dispatcher: no mode sees it. Leave ``percentile_clipping`` at 100.
Its quantization, and its products of quantized matrices, have one owner for each result, and have
no rows.
"""

from detmode.table.chain import RowFields, chain
from detmode.table.conditions import argument, on
from detmode.table.rule import Allow, Refuse

RULES = chain(
    "bitsandbytes::optimizer_update_32bit",
    RowFields(
        when=on("cuda") & argument("max_unorm", 0.0),
        action=Allow(),
        because="without the norm of the update one thread owns an element",
    ),
    RowFields(
        when=on("cuda"),
        action=Refuse(),
        because="blocks add to the norm of the update with a float atomicAdd",
    ),
    otherwise="the kernels elsewhere have no atomics",
)
