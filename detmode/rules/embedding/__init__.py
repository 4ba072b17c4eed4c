"""Backward of ``nn.Embedding``: ``embedding_dense_backward``.

## What varies

Since PyTorch 2.13 the CUDA kernel adds the gradients of a row with a float ``atomicAdd`` where
many positions share few rows; before, and for other shapes, it sorts the indices and adds in
order. On MPS it adds atomically.

## What happens instead

On CUDA the flag selects the sorted kernel. On MPS: PyTorch's error.

## Cost

PyTorch's own: the sort of the indices, which the other shapes pay anyway.

## Limits

With the flag off, as inside ``detmode.allow``, the kernel of 2.13 and later varies.
"""

from detmode.conditions import on
from detmode.rule import RUN_TO_RUN, Allow, Native, Refuse, Rule

RULES = (
    Rule(
        op="aten::embedding_dense_backward",
        when=on("cuda"),
        action=Native(),
        guarantee=RUN_TO_RUN,
        since="2.13",
        because="under the flag the indices are sorted, and the gradients of a row added in order",
    ),
    Rule(
        op="aten::embedding_dense_backward",
        when=on("mps"),
        action=Refuse(),
        alert="embedding_dense_backward_mps",
        since="2.15",
        because="positions that share a row add their gradients atomically",
    ),
    Rule(
        op="aten::embedding_dense_backward",
        action=Allow(),
        because="the indices are sorted, or walked in order, and the gradients of a row added so",
    ),
)

FORWARDS = ("aten::embedding",)
