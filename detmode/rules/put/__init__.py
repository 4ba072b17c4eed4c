"""``Tensor.put_``: ``put``, ``put_`` and the backward of ``torch.take``.

## What varies

With ``accumulate=False`` several sources with the same index write to one element, and the last
writer wins; their order is unspecified, on the CPU too. With ``accumulate=True`` they add with a
float ``atomicAdd`` on CUDA.

## What happens instead

``accumulate=False``: the last source in row-major order stays, as in a serial loop. On CUDA an
element that is put elects it in its own memory: each source stores its position there, an integer
maximum finds the last, a byte for each source says which ones have lost, and the others write. An
element of 8 or 16 bits holds no position: it has an owner in memory beside it, or, where there are
more than 2**24 elements, and 16 for each source, a stable sort of the index finds the last sources.
Up to 64 sources take one launch, in which each looks for later ones. On the CPU ``scatter`` writes
them in order; no kernel is launched.

``accumulate=True`` on CUDA: floating and complex sums are made by the launches of the family
``index``, which give the same bits in any order. Integers and bools add by ATen's own kernel, whose
integer atomics commute; only its alert is left out. On the CPU ATen adds serially under the flag.

Any GPU gives the same bits.

## Cost

The floor is ``index`` and ``source`` read once and one element written for each. Assignments read
the index three times, and add for each source a write and a read of its element, and a byte that is
written and read; nothing for other elements. In 8 and 16 bits they read the index twice, and add 4
bytes for each element of ``self``, 8 from 2**31 sources on, and an atomic and a read for each
source; a sort instead of that moves 64 bytes for each source up to 2**18 elements, 80 up to 2**27.
For the cost of sums, see the family ``index``. A ``self`` that is not
contiguous is copied each way. On the CPU: the index is read once more for its bounds, and one
thread writes instead of all.

In total, assignments move 2.6 times the floor, on the CPU to a quarter of the elements 2.9 times
the floor; float32 sums of two sources for each element 4.1 times the floor, of integers 1.0 times
the floor.

## Limits

An index out of range traps on a GPU, as in ATen, and raises on the host.
"""

from detmode.rules.put import launch
from detmode.table.chain import RowFields, chain, on_cuda
from detmode.table.conditions import COMPLEX, FLOATING, argument, dtype_in, on
from detmode.table.rule import RUN_TO_RUN, Native, Substitute

RULES = chain(
    "aten::put",
    RowFields(
        **on_cuda(launch.put, traffic=2.6, when=argument("accumulate", False)),
        alert="put_",
        because="sources with the same index race for one element",
    ),
    RowFields(
        **on_cuda(launch.put, traffic=4.1, when=dtype_in("self", FLOATING + COMPLEX)),
        alert="put_",
        because="sources with the same index add with a float atomicAdd",
    ),
    RowFields(
        **on_cuda(launch.put_integers, launches=False, traffic=1.0),
        alert="put_",
        because="integer additions commute, but PyTorch alerts",
    ),
    RowFields(
        when=on("cpu") & argument("accumulate", False),
        action=Substitute(launch.put_last_on_cpu, launches=False, traffic=2.9),
        guarantee=RUN_TO_RUN,
        alert="put_",
        because="sources with the same index race for one element",
    ),
    RowFields(
        when=on("cpu"),
        action=Native(),
        guarantee=RUN_TO_RUN,
        because="under the flag one thread adds the sources in order",
    ),
    otherwise="meta tensors have no data; other devices alert themselves",
)

FORWARDS = ("aten::take",)
