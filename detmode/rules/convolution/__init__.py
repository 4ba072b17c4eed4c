"""Convolutions and their backward, by cuDNN.

``nn.Conv1d``, ``Conv2d``, ``Conv3d`` and their transposes all run ``convolution`` and
``convolution_backward``. Traced programs call ``_convolution`` with the settings at tracing time;
``cudnn_convolution*`` are called by name, or inserted by freezing.

## What varies

cuDNN has algorithms that split the sum over blocks and add the parts atomically, above all for the
gradient of the weight. Which algorithm runs is chosen by heuristics, or by timing where
``torch.backends.cudnn.benchmark`` is on.

## What happens instead

Under the flag PyTorch excludes the algorithms that cuDNN marks as nondeterministic, and the mode
turns ``benchmark`` off: for each call, where the program has turned it on inside the block. Where a
call carries ``deterministic=False`` or ``benchmark=True`` itself, and where PyTorch passes them
itself (the fused ``relu`` operators), detmode warns in its own words.

## Cost

That of PyTorch's own path: the best algorithm that does not vary, chosen without timing.

## Limits

ATen's own convolutions (depthwise, and without cuDNN) are not affected; they add in a fixed order.
"""

from detmode.table.chain import RowFields, chain
from detmode.table.conditions import argument, on
from detmode.table.rule import RUN_TO_RUN, Native, Refuse

CALLER_DECIDES = (
    "aten::_convolution",
    "aten::_convolution.deprecated",
    "aten::cudnn_convolution",
    "aten::cudnn_convolution_transpose",
)
FUSED = ("aten::cudnn_convolution_relu", "aten::cudnn_convolution_add_relu")

_EXCLUDED = RowFields(
    when=on("cuda"),
    action=Native(),
    guarantee=RUN_TO_RUN,
    because="cuDNN's nondeterministic algorithms are excluded",
)
_ELSEWHERE = "cuDNN runs on CUDA tensors only"

RULES = (
    *chain(
        CALLER_DECIDES,
        RowFields(
            when=on("cuda") & argument("deterministic", False),
            action=Refuse(),
            because="the call says deterministic=False, so that cuDNN may add parts atomically",
        ),
        RowFields(
            when=on("cuda") & argument("benchmark", True),
            action=Refuse(),
            because="the call says benchmark=True, so that timing chooses cuDNN's algorithm",
        ),
        _EXCLUDED,
        otherwise=_ELSEWHERE,
    ),
    *chain(("aten::convolution", "aten::convolution_backward"), _EXCLUDED, otherwise=_ELSEWHERE),
    *chain(
        FUSED,
        when=on("cuda"),
        action=Refuse(),
        because="PyTorch calls cuDNN with deterministic=False here, whatever the flag",
        otherwise=_ELSEWHERE,
    ),
)
