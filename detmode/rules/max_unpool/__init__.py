"""Max unpooling: ``max_unpool2d`` and ``max_unpool3d``, on every device.

``nn.MaxUnpool1d`` runs the 2d operator. The backward is ``gather``, which does not vary.

## What varies

Two inputs with the same index write to the same element, and the last writer wins; in which order
they write is open, on the CPU (which splits the work over threads) too.

## What happens instead

PyTorch's error, on the CPU too.

## Cost

None: no other kernel runs.

## Limits

There is no substitute yet. PyTorch alerts also where no index occurs twice, as after
``max_pool2d`` with windows that do not overlap; ``detmode.allow("aten::max_unpool2d")`` is then
safe.
"""

from detmode.conditions import on
from detmode.rule import Allow, Refuse, Rule

RULES = (
    Rule(
        op="aten::max_unpool2d",
        when=on("cpu", "cuda", "meta"),
        action=Refuse(),
        alert="max_unpooling2d_forward_out",
        because="inputs with the same index race for one element",
    ),
    Rule(
        op="aten::max_unpool2d",
        action=Allow(),
        because="other devices bring their own implementation, and alert themselves if it varies",
    ),
    Rule(
        op="aten::max_unpool3d",
        when=on("cpu", "cuda", "meta"),
        action=Refuse(),
        alert="max_unpooling3d_forward_out",
        because="inputs with the same index race for one element",
    ),
    Rule(
        op="aten::max_unpool3d",
        action=Allow(),
        because="other devices bring their own implementation, and alert themselves if it varies",
    ),
)
