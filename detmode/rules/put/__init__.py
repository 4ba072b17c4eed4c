"""``Tensor.put_``: ``put``, ``put_`` and the backward of ``torch.take``.

## What varies

With ``accumulate=False`` several sources with the same index write to one element, and the last
writer wins; in which order they write is open, on the CPU too. With ``accumulate=True`` they add
with a float ``atomicAdd`` on CUDA.

## What happens instead

PyTorch's error for ``accumulate=False`` on the CPU, and for both on CUDA. With ``accumulate=True``
the CPU kernel runs serially under the flag.

## Cost

On the CPU: one thread instead of all.

## Limits

There is no substitute yet. PyTorch alerts for empty and unique indices too.
"""

from detmode.conditions import argument, on
from detmode.rule import RUN_TO_RUN, Allow, Native, Refuse, Rule

RULES = (
    Rule(
        op="aten::put",
        when=on("cuda"),
        action=Refuse(),
        alert="put_",
        because="sources with the same index race for one element, or add with a float atomicAdd",
    ),
    Rule(
        op="aten::put",
        when=on("cpu") & argument("accumulate", False),
        action=Refuse(),
        alert="put_",
        because="sources with the same index race for one element",
    ),
    Rule(
        op="aten::put",
        when=on("cpu"),
        action=Native(),
        guarantee=RUN_TO_RUN,
        because="under the flag one thread adds the sources in order",
    ),
    Rule(
        op="aten::put",
        action=Allow(),
        because="meta tensors have no data; other devices alert themselves",
    ),
)

FORWARDS = ("aten::take",)
