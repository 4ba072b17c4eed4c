"""Backward of replication padding: ``replication_pad1d_backward``, ``_2d_`` and ``_3d_``.

## What varies

Every padded output of an edge is a copy of one input element; the CUDA kernels add their gradients
with a float ``atomicAdd``.

## What happens instead

PyTorch's error, where the operator is called itself. ``F.pad(mode="replicate")`` and
``nn.ReplicationPad*d`` take another way under the flag: a decomposition whose backward is
``index_put``, which is deterministic.

## Cost

The decomposition's ``index_put`` sorts one int64 index for each output element.

## Limits

There is no substitute yet.
"""

from detmode.conditions import on
from detmode.rule import Allow, Refuse, Rule

RULES = (
    Rule(
        op="aten::replication_pad1d_backward",
        when=on("cuda"),
        action=Refuse(),
        alert="replication_pad1d_backward_cuda",
        because="copies of an edge element add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::replication_pad1d_backward",
        action=Allow(),
        because="the CPU kernel walks the outputs of a channel in order",
    ),
    Rule(
        op="aten::replication_pad2d_backward",
        when=on("cuda"),
        action=Refuse(),
        alert=("replication_pad2d_backward_cuda", "replication_pad2d_backward_out_cuda"),
        because="copies of an edge element add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::replication_pad2d_backward",
        action=Allow(),
        because="the CPU kernel walks the outputs of a channel in order",
    ),
    Rule(
        op="aten::replication_pad3d_backward",
        when=on("cuda"),
        action=Refuse(),
        alert=("replication_pad3d_backward_cuda", "replication_pad3d_backward_out_cuda"),
        because="copies of an edge element add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::replication_pad3d_backward",
        action=Allow(),
        because="the CPU kernel walks the outputs of a channel in order",
    ),
)
