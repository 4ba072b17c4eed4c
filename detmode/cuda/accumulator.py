"""The Python half of include/accumulator.cuh and sum_to_zeros.cuh: buffers, headroom, launches."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from detmode.cuda.allocation import new_zeros, stretch
from detmode.cuda.launch import ctype, launch
from detmode.cuda.source import Source

_MAX_HEADROOM = 36


def headroom(addends: int) -> int:
    """Return the bits that a sum of `addends` addends can carry: `ceil(log2(addends + 1))`.

    Args:
        addends: an upper bound of the number of addends of any destination.

    Raises:
        ValueError: `addends` is negative, or 2^36 or more.
    """
    if addends < 0:
        raise ValueError(f"headroom(): addends must not be negative, but got {addends}")
    bits = addends.bit_length()
    if bits > _MAX_HEADROOM:
        raise ValueError(f"headroom(): addends must be below 2**{_MAX_HEADROOM}, but got {addends}")
    return bits


def parts_of(dtype: torch.dtype) -> tuple[int, int]:
    """Return the real components of an element, and the 64-bit words of a component's sum."""
    return 1 + dtype.is_complex, 2 if dtype in (torch.float64, torch.complex128) else 1


def bytes_of_sum(dtype: torch.dtype) -> int:
    """Return the bytes of the keys and of the words of an element's sum."""
    components, words = parts_of(dtype)
    return components * (4 + 8 * words)


def accumulator_buffers(
    destinations: int, dtype: torch.dtype, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Return zeroed keys and sums for `destinations` elements of `dtype`, as accumulator.cuh needs.

    Returns:
        Keys, int32 `[destinations * components]`, and sums, int64 `[destinations * components *
        limbs]`: two components for a complex dtype, two limbs for float64 and complex128.
    """
    return _buffers(torch.empty(0, dtype=dtype, device=device), destinations)


def _buffers(like: Tensor, destinations: int) -> tuple[Tensor, Tensor]:
    components, words = parts_of(like.dtype)
    n_keys, n_sums = destinations * components, destinations * components * words
    # One allocation, so one fill: the sums, then the keys.
    scratch = new_zeros(like, (n_sums + (n_keys + 1) // 2,), torch.int64)
    keys = stretch(scratch, n_sums, (n_keys + 1) // 2).view(torch.int32)
    return stretch(keys, 0, n_keys), stretch(scratch, 0, n_sums)


def sum_to_zeros(
    source: Source,
    entry: str,
    threads: int,
    /,
    result: Tensor,
    addends: int,
    **arguments: object,
) -> None:
    """Fill ``result`` with sums of what a kernel passes to ``observe_or_add``, in any order.

    Args:
        source: the file with the kernel, which also has the entry ``finish_sums<dtype>``.
        entry: the kernel, which takes ``keys``, ``sums`` and ``headroom``; it is launched twice.
        threads: of the kernel.
        result: contiguous.
        addends: an upper bound of the number of addends of any element of ``result``.
        arguments: the kernel's other arguments. Where ``needed`` is one and points at 0,
            ``result`` is left as it is.
    """
    n, bits = result.numel(), headroom(addends)
    keys, sums = _buffers(result, n)
    add = partial(launch, source, entry, threads, keys=keys, headroom=bits, **arguments)
    add(sums=None)
    add(sums=sums)
    launch(
        source, f"finish_sums<{ctype(result.dtype)}>", -(-n // 2),
        keys=keys, sums=sums, result=result, n=n, headroom=bits,
        needed=arguments.get("needed"),
    )  # fmt: skip
