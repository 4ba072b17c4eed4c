"""``index_copy``: assignment of rows by index.

Met as ``Tensor.index_copy_``, and in the updates of caches.

## What varies

Where `index` names a row twice, threads race to write it, on CUDA and on the CPU: another row of
`source` may win in each run. Without duplicates nothing varies.

## What happens instead

PyTorch's own deterministic path runs: a stable sort of the index on CUDA (`index_put`), one thread
on the CPU. The last duplicate wins.

## Cost

What PyTorch's path costs: on CUDA a sort of the int64 index, and `source` read once; on the CPU one
thread.

## Limits

Duplicates are not looked for: a call without any takes the deterministic path too.
"""

from detmode.conditions import on
from detmode.rule import RUN_TO_RUN, Allow, Native, Rule

RULES: tuple[Rule, ...] = (
    Rule(
        op="aten::index_copy",
        when=on("cuda", "cpu"),
        action=Native(),
        guarantee=RUN_TO_RUN,
        because="duplicates in index race to write; the last one wins under the flag",
    ),
    Rule(
        op="aten::index_copy",
        action=Allow(),
        because="PyTorch has one path for it on other devices, and no alert",
    ),
)
