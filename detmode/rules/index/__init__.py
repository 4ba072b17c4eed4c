"""Addition and assignment by index: ``index_add`` and ``index_put``.

Used by ``Tensor.index_add_``, ``x[index] = values``, ``x.index_put_(..., accumulate=True)``, and in
the backward of ``x[index]``, ``index_select``, ``repeat_interleave`` and ``as_strided``. The family
``scatter`` uses the same launches.

## What varies

ATen's CUDA kernel for ``index_add`` assigns each element of ``source`` to a thread, which adds it
with an atomic: duplicates in ``index`` are added in an order that varies between runs, and each
addition rounds. Assignments with duplicates keep whichever thread wrote last.
``index_put(accumulate=True)`` sorts and does not vary, but walks over the duplicates of a
destination one by one.

## What happens instead

Additions are substituted, in one of three ways that ``ways.py`` chooses, from shapes and dtype, by
the bytes that each moves. Single elements in float32 or 16 bits, four for each destination or more
and fewer than 2**24: each is added, as an integer, to one of some bins for exponents that its
destination has, and the bins together are rounded once: the result is the number of the dtype
nearest to the exact sum, whatever exponents the addends have. Narrow rows: a maximum of exponents
per destination, then the addends as integers of that scale; integer additions give the same bits in
any order, and the sum is rounded once. Elements that have few destinations, 131,072 and more of
them, 256 for each destination, and at most 8,192 destinations of float32, go the way of narrow rows
by blocks that each add in their shared memory first, single ones too. Wide rows: a stable sort of
the index alone, then each thread adds 64 consecutive rows of one column in float64 (float64 itself
in pairs of float64), and what pieces share goes through the same additions again, so that no thread
walks over a long run of duplicates. Rows of 512 bytes and more are read and written 16 bytes at a
time, in the same order, and their short runs need no second launch. Up to 64 rows are added in the
same way by one launch, without the sort. All roundings are explicit and the choice of bits depends
on shapes and dtype: any GPU gives the same bits.

Assignments move bits, whatever the dtype; the last duplicate wins. Each destination gets an owner
by an integer maximum of the positions of its sources, and the owners write. Single elements, and
rows where there are 16 and more for each source, hold the election in their own memory, which is
overwritten anyway; those that are no whole number of 4 bytes cannot: where there are more than
2**24 of these, and 16 for each source, a stable sort of the index finds the last sources. Up to 64
rows take one launch, in which each looks for later ones. A mask has no duplicates, and its values
are written directly.

Assignments to a ``self`` that is not contiguous, or quantized, sums of integers, and the CPU take
PyTorch's own deterministic path: a stable sort on CUDA, one thread on the CPU.

## Cost

The floor is ``source`` and the index read once and the destinations read and written once. Single
elements are read twice, their index once, with an integer addition each; a destination has 8 bytes,
written and read, for each 16 exponents between the largest addend and the smallest (bfloat16: 32),
and memory for all of them: 136 bytes (bfloat16: 72, float16: 24). Narrow rows read ``source`` and
index twice, and use 12 bytes of scratch per destination (float64: 20, complex twice that), zeroed,
written and read, with an integer maximum and an integer addition per addend. Wide rows read
``source`` once; the sort moves 48 bytes per row up to 2**18 destinations, 64 up to 2**27, 80 up to
2**31; and for every 64 rows two rows of float64 (float64: of pairs) are written and read, of rows
of 512 bytes and more only those of long runs. A sum into a view that is not contiguous adds a copy
of ``self`` each way.

Assignments read ``values`` and write each row once; values that broadcast are written out before.
Of several indices, each adds 24 bytes to become a position. Positions are read twice, and each
destination adds 4 bytes, 8 from 2**31 sources on, and each source an atomic and a read. Where
destinations hold the election, positions are read three times, and each source adds a write and a
read of a word of its destination, and a byte that is written and read. A sort moves 48 bytes for
each source up to 2**18 destinations, 64 up to 2**27.

In total, ``index_add`` of 1,000,000 rows of 64 to 100,000 moves 1.2 times the floor; ``index_put``
of single elements by two indices at most 4.2 times the floor where it adds and 3.4 times the floor
where it assigns, of rows of 768 hardly more than the floor.

## Limits

An index out of range traps on a GPU, as in ATen, and raises on the host. Boolean masks wait for the
GPU (``nonzero``), as in ATen. A sum of intermediate values beyond the dtype's range gives the sum
where ATen may give an infinity.
"""

from detmode.rules.index import launch
from detmode.table.chain import RowFields, chain, on_cuda, on_mps
from detmode.table.conditions import COMPLEX, FLOATING, argument, dtype_in, on, row_major, single
from detmode.table.rule import GPU_TO_GPU, RUN_TO_RUN, Allow, Native, Substitute

FORWARDS: tuple[str, ...] = (
    "aten::as_strided",
    "aten::index",
    "aten::index_select",
    "aten::_unsafe_index",
    "aten::_unsafe_masked_index",
    "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
)

_SUMS = dtype_in("self", FLOATING + COMPLEX)
_ACCUMULATES = argument("accumulate", True) & _SUMS

_ADDED_ON_MPS = on_mps(
    "index_put_with_accumulate_mps", "duplicates in indices add to one element by atomics"
)
_ONE_BY_ONE = "ATen sorts, so it does not vary, but adds duplicates one by one"
_EQUAL = RowFields(
    when=single("values"),
    action=Allow(),
    because="duplicates in indices write or add the same value",
)
_IN_ORDER = RowFields(
    action=Native(),
    guarantee=RUN_TO_RUN,
    because="duplicates in indices race; under the flag they are taken in order",
)

RULES = (
    *chain(
        "aten::index_add",
        on_cuda(launch.index_add, otherwise=Native(), traffic=1.2, when=_SUMS),
        because="duplicates in index add to one row by atomicAdd",
        otherwise="integer additions commute; the CPU adds a destination's rows in order",
    ),
    *chain(
        ("aten::index_put", "aten::_index_put_impl", "aten::_unsafe_index_put"),
        _ADDED_ON_MPS | RowFields(when=on("mps") & _ACCUMULATES),
        RowFields(
            **on_cuda(launch.index_put, otherwise=Native(), traffic=4.2, when=_ACCUMULATES),
            because=_ONE_BY_ONE,
        ),
        _EQUAL,
        RowFields(
            when=on("cuda") & argument("accumulate", False) & row_major("self"),
            action=Substitute(launch.index_put, otherwise=Native(), traffic=3.4),
            guarantee=GPU_TO_GPU,
            because="duplicates in indices race to write; the last one wins",
        ),
        otherwise=_IN_ORDER,
    ),
    *chain(
        "aten::_unsafe_masked_index_put_accumulate",
        _ADDED_ON_MPS | RowFields(when=on("mps") & _SUMS),
        RowFields(
            when=on("cuda") & _SUMS,
            action=Substitute(
                launch.unsafe_masked_index_put_accumulate, otherwise=Native(), traffic=4.2
            ),
            guarantee=GPU_TO_GPU,
            because=_ONE_BY_ONE,
        ),
        _EQUAL,
        otherwise=_IN_ORDER,
    ),
)
