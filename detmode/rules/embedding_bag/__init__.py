"""Backward of embedding bags: ``_embedding_bag_backward`` and what it calls.

Used in the backward of ``nn.EmbeddingBag`` and ``F.embedding_bag``.

## What varies

With ``mode="max"`` the CUDA kernel adds each bag's gradient to the rows that held a maximum with a
float ``atomicAdd``, in an order that varies between runs. ``"sum"`` and ``"mean"`` sort the indices
and add row by row. On MPS every mode adds atomically, and so do the gradients of
``per_sample_weights``.

## What happens instead

With ``mode="max"`` on CUDA, each bag and column adds to the row of the weight that it chose; empty
bags and ``padding_idx`` add nothing. One launch takes a maximum of exponents for each element of
the weight's gradient, the next one adds the addends as integers of that scale. Where the weight has
many more rows than there are bags, a launch writes the addends and their positions instead, and
those of the family ``index`` sort the positions stably and add in pieces of 64. The shapes alone
choose the way, each sum is rounded once, and all roundings are explicit: any GPU gives the same
bits. ATen rounds each addition to the dtype.

``"sum"`` and ``"mean"`` take PyTorch's own path, which does not vary. On MPS PyTorch's error is
raised.

## Cost

The floor is the gradient and the maximum indices read and the weight's gradient written once: in
float32 12 bytes for each bag and column and 4 for each element of the weight. Integers read those
12 bytes twice, with an integer maximum and an integer addition, and cost 28 for each element of the
weight: 12 bytes of scratch (float64: 20) zeroed and read, and the sum. Sorting costs about 110
bytes for each bag and column up to 2**31 elements of the weight, else about 150, and 4 for each
element of the weight. ATen reads 12 and adds with one atomic for each bag and column, and writes 4
for each element of the weight.

In total, 6.4 times the floor for 8192 bags of 64 columns among 30,000 rows, 3.0 for 65,536 bags of
32 among 100, and 1.2 where most rows are in no bag.

## Limits

An index out of range traps on a GPU and raises on the host; ATen writes out of bounds on the GPU. A
bag is empty where ``bag_size`` is 0, as ATen's CPU forward has it, or the index -1, as its CUDA
forward has it. ``per_sample_weights`` with ``mode="max"`` are an error, as in ATen on CUDA. A sum
of intermediate values beyond the dtype's range gives the sum where ATen may give an infinity.
Sparse gradients (``sparse=True``) are not substituted.
"""

from detmode.rules.embedding_bag import launch
from detmode.table.chain import RowFields, chain, on_mps
from detmode.table.conditions import argument, on
from detmode.table.rule import GPU_TO_GPU, Substitute

_MAX = RowFields(
    guarantee=GPU_TO_GPU,
    alert="embedding_bag_backward_cuda_max",
    because="bags that share a maximum row add their gradients with a float atomicAdd",
)
_MPS = on_mps(
    "_embedding_bag_dense_backward_mps", "bags that share a row add their gradients atomically"
)
_OTHERWISE = "sum and mean sort the indices and add in order, and the CPU walks them in order"

RULES = (
    *chain(
        "aten::_embedding_bag_backward",
        _MAX
        | RowFields(
            when=on("cuda") & argument("mode", 2) & argument("sparse", False),
            action=Substitute(launch.embedding_bag_backward, traffic=6.4),
        ),
        _MPS | RowFields(when=on("mps") & argument("sparse", False)),
        otherwise=_OTHERWISE,
    ),
    *chain(
        "aten::_embedding_bag_dense_backward",
        _MAX
        | RowFields(
            when=on("cuda") & argument("mode", 2),
            action=Substitute(launch.embedding_bag_dense_backward, traffic=6.4),
        ),
        _MPS,
        otherwise=_OTHERWISE,
    ),
    *chain(
        "aten::_embedding_bag_per_sample_weights_backward",
        on_mps(
            "_embedding_bag_per_sample_weights_backward_mps",
            "the threads of a sample add their products atomically",
        ),
        otherwise="one warp adds the products of a sample in a fixed order",
    ),
)
