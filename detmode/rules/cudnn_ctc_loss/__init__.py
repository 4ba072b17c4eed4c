"""The connectionist temporal classification loss by cuDNN: ``_cudnn_ctc_loss``.

``F.ctc_loss`` and ``nn.CTCLoss`` run it on CUDA where the targets are int32 and on the CPU, the
blank is 0, and the input lengths are all equal.

## What varies

cuDNN has two algorithms for the gradient, which the loss computes along with itself, and promises
the same bits on each run for one of them. PyTorch's functions always select that one; a call of the
operator itself with ``deterministic=False`` selects the other, and PyTorch is silent about it.

## What happens instead

A warning in detmode's words for a call with ``deterministic=False``. All others are called
unchanged.

## Cost

None.

## Limits

The argument is not changed: pass ``deterministic=True`` to the operator instead.
"""

from detmode.table.chain import chain
from detmode.table.conditions import argument, on
from detmode.table.rule import Refuse

RULES = chain(
    ("aten::_cudnn_ctc_loss", "aten::_cudnn_ctc_loss.Tensor"),
    when=on("cuda") & argument("deterministic", False),
    action=Refuse(),
    because="deterministic=False selects the algorithm of cuDNN that may vary",
    otherwise="deterministic=True selects the algorithm of cuDNN that does not vary",
)
