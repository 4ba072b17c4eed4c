"""Max unpooling: ``max_unpool2d`` and ``max_unpool3d``, on every device.

``nn.MaxUnpool1d`` runs the 2d operator. The backward is ``gather``, which does not vary.

## What varies

Two inputs with the same index write to the same element, and the last writer wins; their order is
unspecified, also on the CPU, which splits the work over threads.

## What happens instead

Of the inputs of a plane with the same index the last in row-major order stays, as in a serial loop.
On CUDA each output gets an owner by an integer maximum of the positions of its inputs, and the
owners write, so any GPU gives the same bits. Where there are enough planes that are not too large,
a block finds the owners of a strip of a plane in its shared memory. Otherwise an output elects its
owner in its own memory; in 16 bits, which hold no position, in memory beside it, or, where there
are more than 2**24 outputs, and 16 for each input, a stable sort of the indices finds the last
ones. On the CPU ``scatter`` writes each plane in
order, several planes at once; no kernel is launched.

## Cost

The floor is the input and its indices read once and the output written once. On CUDA the output is
first filled with zeros, and each input adds its own write. In shared memory each strip of a plane
reads all of the plane's indices, 20 strips at most: on a GPU with 227 KiB for a block, one for each
58,000 outputs. In memory each input adds a write and a read of its output, and a byte that is
written and read, and reads its index three times. In 16 bits an owner is 4 bytes written for each
output, 8 from 2**31 inputs on, and an atomic and a read for each input, which reads its index
twice; a sort instead of that moves 48 bytes for each input up to 2**18 outputs, 64 up to 2**27, and
64 to make its keys. On the CPU the indices are read once more for their bounds. Inputs that are not
contiguous are copied first.

In total, 2.1 times the floor in memory for windows of 4, on the CPU 1.4 times the floor.

## Limits

An index out of range traps on a GPU, as in ATen, and raises on the host. PyTorch alerts on meta
tensors too, which have no data; detmode calls the operator.
"""

from detmode.rules.max_unpool import launch
from detmode.table.chain import RowFields, chain
from detmode.table.conditions import on
from detmode.table.rule import GPU_TO_GPU, RUN_TO_RUN, Substitute

RULES = tuple(
    rule
    for dims, unpool in ((2, launch.max_unpool2d), (3, launch.max_unpool3d))
    for rule in chain(
        f"aten::max_unpool{dims}d",
        RowFields(
            when=on("cuda", "meta"),
            action=Substitute(unpool, traffic=2.1),
            guarantee=GPU_TO_GPU,
        ),
        RowFields(
            when=on("cpu"),
            action=Substitute(launch.max_unpool_on_cpu, launches=False, traffic=1.4),
            guarantee=RUN_TO_RUN,
        ),
        alert=f"max_unpooling{dims}d_forward_out",
        because="inputs with the same index race for one element",
        otherwise="other devices bring their own implementation, and alert themselves",
    )
)
