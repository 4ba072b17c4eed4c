"""TODO: the Python half in one line: allocate, launch."""

from __future__ import annotations

from torch import Tensor
from torch._prims_common import suggest_memory_format

from detmode.cuda import Source, ctype, empty_like, launch

SOURCE = Source(
    __file__,
    "kernels.cu",
    entries=tuple(f"FAMILY<{scalar_t}>" for scalar_t in ("half", "bfloat16", "float", "double")),
)


def FAMILY(self: Tensor) -> Tensor:  # TODO: the operator's arguments, by the schema's names
    """TODO: what it returns, its shape and memory format."""
    self = self.contiguous(memory_format=suggest_memory_format(self))
    result = empty_like(self)
    n = self.numel()
    launch(SOURCE, f"FAMILY<{ctype(self.dtype)}>", n, self=self, result=result, n=n)
    return result
