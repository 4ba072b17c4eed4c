"""TODO: what the family covers, on one line.

TODO: where people meet these operators.

## What varies

TODO: how the ATen kernel's result comes to depend on the order of threads.

## What happens instead

TODO: PyTorch's own deterministic path, or PyTorch's error.

## Cost

TODO: what PyTorch's own path costs, or that no other kernel runs.

## Limits

TODO: what it does not cover.
"""

from detmode.table.chain import chain
from detmode.table.conditions import on
from detmode.table.rule import Refuse

# Each further operator has a chain of its own: RULES = (*chain(...), *chain(...)).
RULES = chain(
    "aten::TODO",
    when=on("cuda"),
    action=Refuse(),  # or Native() with guarantee=RUN_TO_RUN, where PyTorch has a path
    alert=None,  # TODO: the caller name in PyTorch's message, if it alerts
    because="TODO: why ATen's result varies",
    otherwise="TODO: why the result does not vary elsewhere",
)
