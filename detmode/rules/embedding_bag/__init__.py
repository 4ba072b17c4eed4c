"""Backward of embedding bags: ``_embedding_bag_backward`` and what it calls.

## What varies

With ``mode="max"`` the CUDA kernel adds each bag's gradient to the rows that held a maximum with a
float ``atomicAdd``. ``"sum"`` and ``"mean"`` sort the indices and add row by row. On MPS every
mode adds atomically, and so do the gradients of ``per_sample_weights``.

## What happens instead

PyTorch's error.

## Cost

None: no other kernel runs.

## Limits

There is no substitute yet. Sparse gradients (``sparse=True``) are not added here, and pass.
"""

from detmode.conditions import argument, on
from detmode.rule import Allow, Refuse, Rule

RULES = (
    Rule(
        op="aten::_embedding_bag_backward",
        when=on("cuda") & argument("mode", 2) & argument("sparse", False),
        action=Refuse(),
        alert="embedding_bag_backward_cuda_max",
        because="bags that share a maximum row add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::_embedding_bag_backward",
        when=on("mps") & argument("sparse", False),
        action=Refuse(),
        alert="_embedding_bag_dense_backward_mps",
        since="2.15",
        because="bags that share a row add their gradients atomically",
    ),
    Rule(
        op="aten::_embedding_bag_backward",
        action=Allow(),
        because="sum and mean sort the indices and add in order, and the CPU walks them in order",
    ),
    Rule(
        op="aten::_embedding_bag_dense_backward",
        when=on("cuda") & argument("mode", 2),
        action=Refuse(),
        alert="embedding_bag_backward_cuda_max",
        because="bags that share a maximum row add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::_embedding_bag_dense_backward",
        when=on("mps"),
        action=Refuse(),
        alert="_embedding_bag_dense_backward_mps",
        since="2.15",
        because="bags that share a row add their gradients atomically",
    ),
    Rule(
        op="aten::_embedding_bag_dense_backward",
        action=Allow(),
        because="sum and mean sort the indices and add in order, and the CPU walks them in order",
    ),
    Rule(
        op="aten::_embedding_bag_per_sample_weights_backward",
        when=on("mps"),
        action=Refuse(),
        alert="_embedding_bag_per_sample_weights_backward_mps",
        since="2.15",
        because="the threads of a sample add their products atomically",
    ),
    Rule(
        op="aten::_embedding_bag_per_sample_weights_backward",
        action=Allow(),
        because="one warp adds the products of a sample in a fixed order",
    ),
)
