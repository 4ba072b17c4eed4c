"""CUDA kernels from one `.cu` source: on a GPU through CuPy, on the host through the host runner.

It may import :mod:`detmode.process`, and knows no operator. Importing it imports neither CuPy nor a
compiler.
"""

from detmode.cuda import host
from detmode.cuda.accumulator import (
    accumulator_buffers,
    bytes_of_sum,
    headroom,
    parts_of,
    sum_to_zeros,
)
from detmode.cuda.allocation import (
    clone,
    contiguous,
    empty,
    empty_like,
    new_arange,
    new_empty,
    new_full,
    new_zeros,
    stretch,
)
from detmode.cuda.launch import (
    ctype,
    index_ctype,
    launch,
    launch_blocks,
    load,
    magic_number,
    most_shared,
    of_dtypes,
    unavailable,
)
from detmode.cuda.source import CompileError, Source, compile_for, sources_of

__all__ = [
    "CompileError",
    "Source",
    "accumulator_buffers",
    "bytes_of_sum",
    "clone",
    "compile_for",
    "contiguous",
    "ctype",
    "empty",
    "empty_like",
    "headroom",
    "host",
    "index_ctype",
    "launch",
    "launch_blocks",
    "load",
    "magic_number",
    "most_shared",
    "new_arange",
    "new_empty",
    "new_full",
    "new_zeros",
    "of_dtypes",
    "parts_of",
    "sources_of",
    "stretch",
    "sum_to_zeros",
    "unavailable",
]


def __dir__() -> list[str]:
    return __all__
