"""Backward of FBGEMM's jagged and grouped ``index_select``, which TorchRec calls.

The rows have no effect until fbgemm_gpu is imported.

## What varies

Sequences, or rows, that were selected several times add their gradients with a float ``atomicAdd``,
in an order that varies between runs.

## What happens instead

``jagged_index_add_2d_forward`` is substituted: the destination of each row is computed from the
offsets, and the rows are added as ``scatter_add`` adds them: as integers of one scale for each
destination, or sorted and in order. All roundings are explicit: any GPU gives the same bits. For
the backward of ``group_index_select_dim0`` detmode warns in its own words.

## Cost

As ``scatter_add`` of rows. Before it, a search for the sequence of each row among the offsets, and
four passes over one integer for each row. The bytes are not counted.

## Limits

Schemas are those of FBGEMM's sources; no release is built for the PyTorch of the tests, which
define operators of these schemas. Integers add exactly in any order and are left alone.

The backward of pooled embeddings, ``split_embedding_backward_codegen_*``, sorts indices and adds
each run of equal ones; only very long runs are split and meet in atomics. It reads PyTorch's flag
itself, and splits no runs under it: it needs no row. In place of ``group_index_select_dim0``, call
``index_select`` for each tensor, whose backward is substituted.
"""

from detmode.rules.fbgemm import launch
from detmode.table.chain import chain, on_cuda
from detmode.table.conditions import FLOATING, dtype_in, on
from detmode.table.rule import Refuse

JAGGED = ("fbgemm::jagged_index_add_2d_forward", "fbgemm::jagged_index_add_2d_forward_v2")

RULES = (
    *chain(
        JAGGED,
        on_cuda(
            launch.jagged_index_add,
            traffic=None,
            otherwise=Refuse(),
            when=dtype_in("values", FLOATING),
        ),
        because="rows of sequences selected twice meet in a float atomicAdd",
        otherwise="on the CPU rows take turns, and integers are exact in any order",
    ),
    *chain(
        "fbgemm::group_index_select_dim0_gpu_backward",
        when=on("cuda"),
        action=Refuse(),
        because="gradients of rows selected twice meet in a float atomicAdd",
        otherwise="the kernel runs on CUDA tensors only",
    ),
)

FORWARDS = (
    "fbgemm::jagged_index_select",
    "fbgemm::jagged_index_select_2d_forward",
    "fbgemm::jagged_index_select_2d_forward_v2",
    "fbgemm::group_index_select_dim0_gpu_impl",
)
