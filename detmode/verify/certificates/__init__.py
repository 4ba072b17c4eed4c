"""``detmode.certify``: whether a kernel of anybody's gives the same bits in any order of threads.

It may import :mod:`detmode.cuda` and what compares tensors in :mod:`detmode.runs`. It knows no
operator. Triton is imported only for kernels of Triton's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket

from detmode.process.dispatch import without_modes
from detmode.verify.certificates.certificate import Certificate

TIMEOUT = 120.0
"""Seconds that one schedule may take, if nothing else is asked for."""

Grid = int | Sequence[int] | Callable[[dict[str, Any]], Sequence[int]]


def certify(
    kernel: str | Path | object,
    arguments: Mapping[str, Any] | Sequence[Any],
    *,
    repeats: int = 20,
    grid: Grid | None = None,
    block: int | Sequence[int] | None = None,
    entry: str | None = None,
    shared_memory: int = 0,
    constants: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = (),
    seed: int = 0,
    timeout: float = TIMEOUT,
) -> Certificate:
    """Run a kernel under many orders of its blocks and threads, and say whether its bits vary.

    No GPU is needed. CUDA C++ is compiled for the CPU and run by the host runner, Triton's kernels
    run in Triton's interpreter. The arguments are copied; nothing is written to them.

    >>> source = "__global__ void sum(const float* x, float* y) { atomicAdd(y, x[threadIdx.x]); }"
    >>> x = torch.rand(64, generator=torch.Generator().manual_seed(0))
    >>> certificate = detmode.certify(source, {"x": x, "y": torch.zeros(1)}, grid=1, block=64)
    >>> certificate.verdict.value, certificate.atomics
    ('varies', ('float add',))

    Args:
        kernel: CUDA C++ as text, the path of a ``.cu`` file, a ``cupy.RawKernel`` or
            ``cupy.RawModule``; or a kernel of ``triton.jit``, also under ``triton.autotune`` or
            ``triton.heuristics``; or an operator that launches such kernels, as an object or by
            name (``"mylib::add"``).
        arguments: of the kernel, by name or in order. CUDA C++: a tensor for a pointer (None for a
            null pointer), a number or bool for a scalar, and ``bytes`` for a struct by value.
            Triton: as in a launch, with its ``constexpr`` arguments. Tensors of any device,
            dtype and shape; memory between the elements of a strided one belongs to it.
        repeats: the number of schedules, at least 2; the first one is program order. Where few
            blocks touch the same memory, all their orders are run instead.
        grid: the number of blocks (programs), up to three sizes; Triton: also a function of the
            kernel's arguments, as in a launch. An operator has none.
        block: CUDA C++ only: the threads of a block, up to three sizes.
        entry: CUDA C++ only: the name of the kernel, with a template's arguments
            (``"sum<float>"``); it may be left out where the source has one kernel.
        shared_memory: CUDA C++ only: the bytes of dynamic shared memory.
        constants: CUDA C++ only: values of ``__constant__`` and ``__device__`` variables by name.
        outputs: CUDA C++ only: the names of arguments that the kernel writes whole. They are
            poisoned before each run, and an element that is not written is a fault.
        seed: of the shuffles.
        timeout: the seconds that one schedule may take.

    Returns:
        A :class:`Certificate`: it prints as a table, and has JSON.

    Raises:
        TypeError, ValueError: an argument is wrong; the message says which.
        TimeoutError: a schedule did not end in time; the message says which.
        detmode.cuda.CompileError: there is no C++ compiler, or the source uses something that the
            host runner does not have; the message names it.
    """
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 2:
        raise ValueError(f"certify(): repeats must be an int of at least 2, but got {repeats!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ValueError(f"certify(): timeout must be above 0 seconds, but got {timeout!r}")
    for_cuda = block is not None or entry is not None or shared_memory or constants or outputs
    if _is_operator(kernel):
        if grid is not None or for_cuda:
            raise TypeError("certify(): an operator takes its arguments alone, no grid")
        from detmode.verify.certificates.triton import examination

        return examination.certify_operator(
            kernel, arguments, repeats=repeats, seed=seed, timeout=timeout
        )
    if grid is None:
        raise TypeError("certify(): a kernel needs grid=, the number of its blocks or programs")
    if _is_triton(kernel):
        if for_cuda:
            raise TypeError(
                "certify(): block, entry, shared_memory, constants and outputs are for CUDA C++; a "
                "Triton kernel takes its arguments and grid"
            )
        from detmode.verify.certificates.triton import examination

        return examination.certify(
            kernel, arguments, repeats=repeats, grid=grid, seed=seed, timeout=timeout
        )
    from detmode.verify.certificates import cuda

    if callable(grid):
        raise TypeError("certify(): a CUDA kernel's grid is an int or up to three of them")
    if block is None:
        raise TypeError("certify(): a CUDA kernel needs block=, the threads of a block")
    with without_modes():
        return cuda.certify(
            kernel,
            arguments,
            repeats=repeats,
            grid=grid,
            block=block,
            entry=entry,
            shared_memory=shared_memory,
            constants=constants or {},
            outputs=outputs,
            seed=seed,
            timeout=timeout,
        )


def _is_operator(kernel: object) -> bool:
    if isinstance(kernel, str):
        return re.fullmatch(r"\w+::\w+(\.\w+)?", kernel) is not None
    return isinstance(kernel, (OpOverload, OpOverloadPacket, CustomOpDef))


def _is_triton(kernel: object) -> bool:
    """Return whether Triton made an object, without importing Triton."""
    triton = sys.modules.get("triton.runtime")
    return triton is not None and isinstance(kernel, triton.KernelInterface)
