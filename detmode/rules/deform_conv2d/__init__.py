"""Backward of torchvision's deformable convolution, ``deform_conv2d``.

``torchvision.ops.DeformConv2d`` calls it. The rows have no effect until torchvision is imported.

## What varies

Each element of the convolution's kernel reads the input at a place that an offset moves. In the
backward the gradients of all places near a pixel are added to it with a float ``atomicAdd``, in an
order that varies between runs. The other four gradients do not vary.

## What happens instead

The whole operator is substituted. As in torchvision, matrix products give the gradient of every
place, 32 images at a time. For ``input`` these are added up in any order: a maximum of exponents
per pixel, then the addends as integers of that scale; the sum is rounded once. For ``offset`` and
``mask`` one thread owns a place and adds up the channels that read there, in order; the rounding
error of the sum is tracked and added at the end. ``weight`` and ``bias`` come from a matrix product
and a sum of PyTorch's. cuBLAS may choose another algorithm on another GPU, so the same bits are
promised on the same GPU only.

## Cost

The matrix products are torchvision's. The gradients of the places, kernel height times kernel width
as many as ``input`` has elements at stride 1, are written once and read three times, by torchvision
as well; it fills them with zeros first. The places' values then take their memory. A place adds
four integer maxima, most of which change nothing, and four integer additions where torchvision has
four float additions. For each element of ``input`` of 32 images 12 bytes of scratch (float64: 20)
are zeroed, written and read.

The total is not counted in floors: most of the bytes are those of the places, as in torchvision.

## Limits

Places in float16 are computed in float, where torchvision rounds them to float16. The matrix
products follow PyTorch's settings, ``torch.backends.cuda.matmul`` among them; until 2.9 PyTorch
requires ``CUBLAS_WORKSPACE_CONFIG``. torchvision does not alert on MPS.
"""

from detmode.rules.deform_conv2d import launch
from detmode.table.chain import chain
from detmode.table.conditions import on
from detmode.table.rule import RUN_TO_RUN, Substitute

RULES = chain(
    "torchvision::_deform_conv2d_backward",
    when=on("cuda"),
    action=Substitute(launch.deform_conv2d_backward, traffic=None),
    guarantee=RUN_TO_RUN,
    alert="compute_grad_input",
    because="displaced taps near one pixel add their gradients with a float atomicAdd",
    otherwise="the CPU kernels walk the taps in order",
)
