"""Backward of antialiased interpolation: ``_upsample_*2d_aa_backward``, bilinear and bicubic.

``F.interpolate(antialias=True)`` and torchvision's ``resize`` of tensors. PyTorch has no
deterministic path for them.

## What varies

ATen's CUDA kernel assigns each element of ``grad_output`` to a thread, which adds its share to all
elements of ``grad_input`` under the filter with atomics, in an order that varies between runs: at a
reduction by s the filter covers about (2 s)**2 of them (bilinear) or (4 s)**2 (bicubic).

## What happens instead

A small launch tabulates, for each dimension, the output positions that read an input position and
their normalised weights, by ATen's arithmetic. Then the gathers of the family ``upsample`` run: one
thread, or a warp where rows grow more than twentyfold, owns an element of ``grad_input`` and adds
what reaches it in an order that depends on the sizes alone, each operation rounded explicitly, so
any GPU gives the same bits. As there, one launch does both where there are few elements. Weights
stay in float for float16 and bfloat16, where ATen rounds them to the dtype.

## Cost

The floor is ``grad_output`` read and ``grad_input`` written once. In a reduction by s, this
operator's use, ``grad_input`` is s**2 times ``grad_output``, and an element of it meets at most
about 2 (bilinear) or 4 (bicubic) output positions in each dimension, read from cache; ATen adds as
often to ``grad_input``, and writes it with zeros before. A table adds ``out`` times min(2
ceil(reach * s) + 1, ``in``) weights for each dimension, reach being 1 or 2.

In total, 1.0 times the floor.

## Limits

ATen raises where the filter's weights exceed a block's shared memory (a reduction by more than
about 150 or 75 in float); here that works. An explicit scale that contradicts the sizes can leave
an output position with weights that sum to about zero: ATen divides rounding noise there, and so
does detmode. A dimension has less than 2**31 positions. Up to PyTorch 2.15 Lanczos interpolation
only has a CPU kernel; a CUDA kernel would get a warning in detmode's own words.
"""

from detmode.rules.upsample_aa import launch
from detmode.table.chain import RowFields, chain, on_cuda, on_mps
from detmode.table.conditions import nonempty, on
from detmode.table.rule import Refuse

_IN_ORDER = "the CPU kernel adds a channel's output positions in order"

RULES = (
    *(
        rule
        for name, function in (
            ("upsample_bilinear2d_aa_backward", launch.upsample_bilinear2d_aa_backward),
            ("upsample_bicubic2d_aa_backward", launch.upsample_bicubic2d_aa_backward),
        )
        for rule in chain(
            f"aten::_{name}",
            RowFields(
                **on_cuda(function, traffic=1.0),
                alert=f"{name}_out_cuda",
                because="output positions that read one input position add to it by atomicAdd",
            ),
            on_mps(
                name,
                "output positions that read one input position add to it atomically",
                when=nonempty("grad_output"),
            ),
            otherwise=_IN_ORDER,
        )
    ),
    *chain(
        "aten::_upsample_lanczos2d_aa_backward",
        when=on("cuda"),
        action=Refuse(),
        because="a CUDA kernel, which PyTorch has not had until 2.15, may add as its neighbours do",
        otherwise=_IN_ORDER,
    ),
)
