"""Forward of the negative log likelihood over images: ``nll_loss2d_forward``.

``F.nll_loss`` and ``F.cross_entropy`` run it for inputs of three or more dimensions, so that it is
in every segmentation loss. For one or two dimensions they run ``nll_loss_forward``, which does not
vary.

## What varies

With ``reduction="mean"`` or ``"sum"`` the CUDA kernel adds the blocks' partial losses and weights
with a float ``atomicAdd``.

## What happens instead

PyTorch's error. ``reduction="none"`` does not vary and passes.

## Cost

None: no other kernel runs.

## Limits

There is no substitute yet; ``F.cross_entropy(..., reduction="none").mean()`` gives the mean
deterministically where no weights and no ignored targets are in play.
"""

from detmode.conditions import argument, on
from detmode.rule import Allow, Refuse, Rule

RULES = (
    Rule(
        op="aten::nll_loss2d_forward",
        when=on("cuda") & argument("reduction", 1, 2),
        action=Refuse(),
        alert="nll_loss2d_forward_out_cuda_template",
        because="blocks add their partial sums with a float atomicAdd",
    ),
    Rule(
        op="aten::nll_loss2d_forward",
        action=Allow(),
        because="without a reduction each pixel is written once, and the CPU adds in order",
    ),
)
