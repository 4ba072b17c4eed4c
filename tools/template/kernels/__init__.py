"""TODO: what the family covers, on one line.

TODO: where people meet these operators.

## What varies

TODO: how the ATen kernel's result comes to depend on the order of threads.

## What happens instead

TODO: the algorithm, and the fixed order of its additions.

## Cost

TODO: the bytes it reads and writes, beside the inputs once and the outputs once.

In all 1.0 times the floor.

## Limits

TODO: what it does not cover, and where it differs from ATen.
"""

from detmode.rules.FAMILY import launch
from detmode.table.chain import chain
from detmode.table.conditions import FLOATING, dtype_in, on
from detmode.table.rule import RUN_TO_RUN, Refuse, Substitute

# Each further operator has a chain of its own: RULES = (*chain(...), *chain(...)).
RULES = chain(
    "aten::TODO",
    when=on("cuda") & dtype_in("self", FLOATING),
    # TODO: or otherwise=Native(), PyTorch's own path; traffic is what Cost says in all
    action=Substitute(launch.FAMILY, otherwise=Refuse(), traffic=1.0),
    guarantee=RUN_TO_RUN,
    alert=None,  # TODO: the caller name in PyTorch's message, if it alerts
    because="TODO: why ATen's result varies",
    otherwise="TODO: why the result does not vary elsewhere",
)
