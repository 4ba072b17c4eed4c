"""The name under which users call an operator: ``F.interpolate``, ``Tensor.item``."""

from __future__ import annotations

import re
from functools import lru_cache

from detmode.table.called_as import functions_of, public_name

_CONVOLUTIONS = (
    "F.conv*",
    *(
        f"{name}{dims}d"
        for name in ("F.conv", "F.conv_transpose", "nn.Conv", "nn.ConvTranspose")
        for dims in (1, 2, 3)
    ),
)
_WRITTEN = {
    "aten::_convolution": _CONVOLUTIONS,
    "aten::convolution": _CONVOLUTIONS,
    "aten::convolution_backward": _CONVOLUTIONS,
    "aten::_local_scalar_dense": ("Tensor.item",),
    "aten::_to_copy": ("Tensor.to",),
    "aten::lift_fresh": ("torch.tensor", "torch.as_tensor", "torch.from_numpy"),
}
"""Names that users have for operators that no function of PyTorch is named after.

The first one stands for all where the line of code has none of them.
"""
_MOST_FUNCTIONS = 3
"""Of so many functions that call an operator the first stands for all."""


@lru_cache(1 << 10)
def written_as(overload: str, source: str = "") -> str:
    """Return the name under which users call an operator; empty where none is known.

    >>> written_as("aten::upsample_bilinear2d_backward.default", "F.interpolate(x, 9)")
    'F.interpolate'

    Args:
        overload: of the operator, such as ``"aten::put_.default"``.
        source: the line of code that makes the call; what it names comes first.
    """
    op = overload.partition(".")[0]
    bare = op.partition("::")[2]
    if op in _WRITTEN:
        names = _WRITTEN[op]
        return next((name for name in names if _is_called(name, source)), names[0])
    names = functions_of(op)
    in_source = sorted((name for name in (bare, *names) if _is_called(name, source)), key=len)
    stem = bare.lstrip("_").removesuffix("_backward").removesuffix("_forward")
    functions = [name for name in names if name.islower()]
    of_few = functions[:1] if len(functions) <= _MOST_FUNCTIONS else []
    same = [name for name in names if name == stem]
    candidates = (*reversed(in_source), bare, *same, *of_few, stem)
    return next(filter(None, map(public_name, candidates)), "")


def _is_called(name: str, source: str) -> bool:
    """Return whether a line of code calls a function of this name."""
    return re.search(rf"\b{name.rpartition('.')[2]}\(", source) is not None
