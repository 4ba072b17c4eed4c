"""Backward of grid sampling: ``grid_sampler_2d_backward``, ``_3d_`` and cuDNN's.

## What varies

Samples of a grid that fall near one input pixel add their gradients to it with a float
``atomicAdd``. ``F.grid_sample`` and ``nn.functional.affine_grid`` networks use it; since PyTorch
2.13 cuDNN's own operator alerts too, which PyTorch picks for 4-D bilinear sampling with zero
padding and ``align_corners=True``.

## What happens instead

PyTorch's error, also where the gradient of the input is not asked for: so PyTorch.

## Cost

None: no other kernel runs.

## Limits

There is no substitute yet.
"""

from detmode.conditions import on
from detmode.rule import GPU_TO_GPU, Allow, Refuse, Rule, Substitute
from detmode.rules.grid_sampler import launch

RULES: tuple[Rule, ...] = (
    Rule(
        op="aten::grid_sampler_2d_backward",
        when=on("cuda"),
        action=Substitute(launch.grid_sampler_2d_backward),
        guarantee=GPU_TO_GPU,
        alert="grid_sampler_2d_backward_cuda",
        because="samples near one pixel add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::grid_sampler_2d_backward",
        when=on("mps"),
        action=Refuse(),
        alert="grid_sampler_2d_backward_mps",
        since="2.15",
        because="samples near one pixel add their gradients atomically",
    ),
    Rule(
        op="aten::grid_sampler_2d_backward",
        action=Allow(),
        because="the CPU kernel walks the samples of an image in order",
    ),
    Rule(
        op="aten::grid_sampler_3d_backward",
        when=on("cuda"),
        action=Substitute(launch.grid_sampler_3d_backward),
        guarantee=GPU_TO_GPU,
        alert="grid_sampler_3d_backward_cuda",
        because="samples near one voxel add their gradients with a float atomicAdd",
    ),
    Rule(
        op="aten::grid_sampler_3d_backward",
        when=on("mps"),
        action=Refuse(),
        alert="grid_sampler_3d_backward_mps",
        since="2.15",
        because="samples near one voxel add their gradients atomically",
    ),
    Rule(
        op="aten::grid_sampler_3d_backward",
        action=Allow(),
        because="the CPU kernel walks the samples of an image in order",
    ),
    Rule(
        op="aten::cudnn_grid_sampler_backward",
        when=on("cuda"),
        action=Substitute(launch.cudnn_grid_sampler_backward),
        guarantee=GPU_TO_GPU,
        alert="cudnn_grid_sampler_backward",
        since="2.13",
        because="cuDNN adds the gradients of samples near one pixel in no fixed order",
    ),
    Rule(
        op="aten::cudnn_grid_sampler_backward",
        when=on("cuda"),
        action=Substitute(launch.cudnn_grid_sampler_backward),
        guarantee=GPU_TO_GPU,
        until="2.12",
        because="cuDNN adds the gradients of samples near one pixel in no fixed order",
    ),
    Rule(
        op="aten::cudnn_grid_sampler_backward",
        action=Allow(),
        because="cuDNN runs on CUDA tensors only",
    ),
)
