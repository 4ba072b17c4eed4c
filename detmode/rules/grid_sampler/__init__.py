"""Backward of grid sampling: ``grid_sampler_2d_backward``, ``_3d_`` and cuDNN's.

``F.grid_sample`` calls them, and so do spatial transformers, warps and deformable attention.

## What varies

Samples of a grid that fall near one input pixel add their gradients to it with a float
``atomicAdd``. PyTorch alerts on every call, even where the gradient of the input is not asked for.
Since PyTorch 2.13 cuDNN's own operator alerts too, which PyTorch picks for 4-D bilinear sampling
with zero padding and ``align_corners=True``; before, it varies without an alert.

## What happens instead

The gradient of the input is summed in two passes over ``grad_output``: the first finds, for each
input element, the largest exponent of its addends, the second adds them as integers of that scale.
Integers add to the same sum in any order, and the sum is rounded to the dtype once. Where there are
enough channels that are not too large, a block does both for a channel, or for a strip of one, in
its shared memory. A channel of 1,024 pixels or more in which at most 128 samples have at most 384
taps, bilinear, trilinear or nearest, as in RAFT's look-ups, is written by a block as zeros, with
sums in a table in its shared memory. Otherwise each pass is a launch, in which a thread adds what
its neighbour has for the same pixel to its own. Where samples are linear and many, and neighbours
meet neighbouring pixels, a block does both for a tile of the input: a launch before cuts the
samples into boxes, and lists for each tile those that meet it. It also finds whether the grid is
smooth enough for that; the other launches follow, and end at once where it is. The bits are the
same.

The gradient of the grid has one owner for each sample, which adds channels in ascending order and
tracks the rounding error of the sum. Where there are few samples and at least 32 channels, eight
threads each add a run of channels, and one adds the runs in order. That depends on shapes only.

Positions and weights have explicit roundings, so any GPU gives the same bits. For float16 and
bfloat16 they are computed in float, as in ATen's forward kernels; ATen's backward kernels round
them to 16 bits, and may take another pixel than the forward operator read. cuDNN's operator is
computed as ATen's with bilinear interpolation, zero padding and ``align_corners=True``.

## Cost

The floor is ``grad_output``, ``input`` and ``grid`` read once and both gradients written once. A
sample has 4 taps (bilinear), 1 (nearest), 16 (bicubic), 8 (trilinear) or 64 (tricubic). In float32,
for each tap of a sample and channel, the gradient of the input reads an int32 key twice and adds an
int64 atomically: 16 bytes where ATen adds 4 atomically. Taps of neighbouring samples meet in the
caches. ``grad_output`` is also read twice more, and for each input element 12 bytes of scratch are
set to zero and read. float64 has 20 bytes of scratch, and up to two atomics a tap. A thread serves
up to 8 channels, for which it computes its weights once. In shared memory all of this but
``grad_output`` and the result is left out, while each strip of a channel looks at all samples, 6
strips at most: on a GPU with 227 KiB for a block, one for each 19,000 elements in float32. With a
table `grad_output` and the grid are read once for it, and the result is written 16 bytes at once.
The gradient of the grid reads what ATen reads, in a launch of its own. For a smooth
grid, of at least 2^20 samples of all channels, 16 bytes a sample (in float64 32) are written once
and read about three times (4 in volumes) for each group of channels, 7 at most on that GPU.

In total, without what the caches save, 9.0 times the floor for bilinear samples of 64 channels, as
many as pixels, and 6.1 times the floor for trilinear ones of one channel.

## Limits

A channel's taps are fewer than 2^36. In memory, the scratch is three times as large as a float32
input, six times as large as a 16-bit one and 2.5 times as large as a float64 one; before it, 16
bytes for each sample where its grid may be smooth, 32 in float64. A NaN or infinite
position gets what ATen's CUDA kernels give it: no tap, or for bicubic a NaN. What cuDNN gives for
such positions is not documented, and may differ. Interpolation and padding modes that PyTorch does
not define are a ``RuntimeError``, where ATen leaves the gradient of the grid unwritten. A
``grad_output`` of another shape than the forward operator's output is a ``ValueError``, as in newer
versions of ATen; older ones read beyond it. 5-D bicubic sampling runs where PyTorch has it. The
gradient of the grid is computed also where autograd needs that of the input only, as in ATen. There
is no substitute on MPS.
"""

from detmode.rules.grid_sampler import launch
from detmode.table.chain import RowFields, chain, on_cuda, on_mps
from detmode.table.conditions import on
from detmode.table.rule import GPU_TO_GPU, Refuse, Substitute

RULES = (
    *chain(
        "aten::grid_sampler_2d_backward",
        RowFields(
            **on_cuda(launch.grid_sampler_2d_backward, traffic=9.0),
            alert="grid_sampler_2d_backward_cuda",
            because="samples near one pixel add their gradients with a float atomicAdd",
        ),
        on_mps(
            "grid_sampler_2d_backward_mps", "samples near one pixel add their gradients atomically"
        ),
        otherwise="the CPU kernel walks the samples of an image in order",
    ),
    *chain(
        "aten::grid_sampler_3d_backward",
        RowFields(
            **on_cuda(launch.grid_sampler_3d_backward, traffic=6.1),
            alert="grid_sampler_3d_backward_cuda",
            because="samples near one voxel add their gradients with a float atomicAdd",
        ),
        on_mps(
            "grid_sampler_3d_backward_mps", "samples near one voxel add their gradients atomically"
        ),
        otherwise="the CPU kernel walks the samples of an image in order",
    ),
    *chain(
        "aten::cudnn_grid_sampler_backward",
        RowFields(
            action=Substitute(launch.cudnn_grid_sampler_backward, traffic=9.0),
            alert="cudnn_grid_sampler_backward",
            since="2.13",
        ),
        RowFields(
            action=Substitute(launch.cudnn_grid_sampler_backward, otherwise=Refuse(), traffic=9.0),
            until="2.12",
        ),
        when=on("cuda"),
        guarantee=GPU_TO_GPU,
        because="cuDNN adds the gradients of samples near one pixel in no fixed order",
        otherwise="cuDNN runs on CUDA tensors only",
    ),
)

STANDS_FOR = {"aten::grid_sampler_2d_backward": ("aten::cudnn_grid_sampler_backward",)}
