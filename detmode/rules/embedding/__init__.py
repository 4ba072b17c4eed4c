"""Backward of ``nn.Embedding``: ``embedding_dense_backward``.

Used in the backward of ``nn.Embedding`` and ``F.embedding`` with ``sparse=False``.

## What varies

Since PyTorch 2.13 the CUDA kernel adds the gradients of a row with a float ``atomicAdd`` where many
positions share few rows; before 2.13, and for other shapes, it adds them in a fixed order: few
positions in program order, more of them sorted by index in pieces, and then the pieces of a row one
by one. On MPS it adds atomically.

## What happens instead

Floating gradients are added with the launches of the family ``index``. Wide rows: a stable sort of
the indices alone, in the narrowest integer type that holds them, then 64 positions of one column at
a time in float64 (float64 itself in pairs of float64), and what pieces share in the same way, so
that no thread walks over a frequent row. Narrow rows: integers of a common scale, in any order.
``scale_grad_by_freq`` divides the unrounded sum by the number of positions; ATen multiplies each
gradient by the rounded reciprocal. The shapes alone choose the way, and all roundings are explicit:
any GPU gives the same bits.

With ``substitute=False`` the flag selects ATen's sorted kernel. On MPS PyTorch's error is raised.

## Cost

The floor is ``grad_output`` and ``indices`` read and the gradient of the weight written once. Wide
rows add to it the zeros of that gradient, which ATen writes too; the sort, which moves 48 bytes for
each position up to 2**18 rows of weight, 64 up to 2**27, 80 up to 2**31; and for every 64 positions
two rows of float64, written and read, in float32 an eighth of ``grad_output``. Narrow rows cost
what the family ``index`` says. Positions that hold ``padding_idx`` are read and added too, as in
ATen's sorted kernel, and their row is zeroed in the end.

In total, 1.5 times the floor for 50,000 positions of 768 columns among 30,522 rows; 1.1 for 4096
columns, 2.3 for 16.

## Limits

An index out of range traps on a GPU and raises on the host, where ATen writes out of bounds on the
GPU and skips it on the CPU; the forward rejects it. That holds also for an index that equals a
``padding_idx`` which is out of range, such as -1: ATen skips it. ``max_norm`` renormalizes rows in
the forward with an operator of its own, which does not vary.
"""

from detmode.rules.embedding import launch
from detmode.table.chain import RowFields, chain, on_mps
from detmode.table.conditions import FLOATING, dtype_in, on
from detmode.table.rule import GPU_TO_GPU, Native, Substitute

RULES = chain(
    "aten::embedding_dense_backward",
    RowFields(
        when=on("cuda") & dtype_in("grad_output", FLOATING),
        action=Substitute(launch.embedding_dense_backward, otherwise=Native(), traffic=1.5),
        guarantee=GPU_TO_GPU,
        because="since 2.13 few rows with many positions are added by atomicAdd; else ATen sorts",
    ),
    on_mps(
        "embedding_dense_backward_mps", "positions that share a row add their gradients atomically"
    ),
    otherwise="the indices are walked in order, and the gradients of a row added so",
)

FORWARDS = ("aten::embedding",)
